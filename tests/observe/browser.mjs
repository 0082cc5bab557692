// Drives the dashboard in Chromium: log-in, an outage as on-call sees it, draining an upstream with the keyboard alone.
// Arguments: the admin side's URL, its token, the driver library's folder, a folder for pictures. Says "calm",
// "drained" and "done" on standard output and waits for a line of standard input after each but the last.

import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { join } from "node:path";

const [admin, token, library, pictures] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(library);
const words = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const PATIENCE = 30000;

const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });

async function step(word) {
  console.log(word);
  const { done } = await words.next();
  if (done) throw new Error("the test has ended");
}

function watch(page) {
  page.on("console", (message) => {
    // The browser itself reports the answer to a log-in with a wrong token.
    if (message.type() === "error" && !message.location().url.endsWith("/dashboard/login")) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(`${admin}/`) && !request.url().startsWith("data:")) problems.push(`foreign request: ${request.url()}`);
  });
  page.on("response", (response) => {
    if (response.status() >= 500) problems.push(`${response.status()} of ${response.url()}`);
  });
}

const has = (page, selector, text) => page.waitForFunction(
  ([where, what]) => [...document.querySelectorAll(where)].some((node) => node.textContent.includes(what)),
  [selector, text],
  { timeout: PATIENCE },
);

/** Presses Tab until the focus is where `selector` says. */
async function tabTo(page, selector) {
  for (let presses = 0; presses < 150; presses += 1) {
    if (await page.evaluate((where) => document.activeElement?.matches(where), selector)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`the keyboard does not reach ${selector}`);
}

async function picture(page, name) {
  for (const width of [390, 1440]) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height: width < 700 ? 844 : 1000 });
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.waitForTimeout(300);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (overflow > 0) problems.push(`${overflow} px too wide at ${width}`);
      await page.screenshot({ path: join(pictures, `${name}-${width}-${colorScheme}.png`), fullPage: true });
    }
  }
  await page.setViewportSize({ width: 1440, height: 1000 });
}

try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1000 } });
  watch(page);
  await page.goto(`${admin}/dashboard`);
  await page.waitForSelector("#login:not([hidden])", { timeout: PATIENCE });
  await page.keyboard.type("not the token");
  await page.keyboard.press("Enter");
  await has(page, "#login-problem", "not the admin token");
  await page.keyboard.press("Control+A");
  await page.keyboard.type(token);
  await page.keyboard.press("Enter");
  await page.waitForSelector('#live[data-state="live"]', { timeout: PATIENCE });
  await has(page, "#verdict-title", "Search is healthy");
  await has(page, '#upstreams tr[data-id="one"]', "Closed");
  await picture(page, "calm");

  await step("calm");
  await has(page, '#upstreams tr[data-id="one"]', "Open");
  await has(page, "#timeline", "Breaker of one opened");
  await has(page, "#verdict-title", "Search is slow");
  await page.waitForFunction(() => {
    const over = [...document.querySelectorAll(".tile")].find((tile) => tile.querySelector("dt").textContent === "Query p95");
    return over?.dataset.state === "bad";
  }, null, { timeout: PATIENCE });
  await has(page, "#slo-table", "Burning fast");
  await picture(page, "outage");

  await page.evaluate(() => document.activeElement?.blur());
  await tabTo(page, 'button[aria-label="Drain two"]');
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]", { timeout: PATIENCE });
  await has(page, "#dialog-title", "Drain: two?");
  await has(page, "#dialog-body", "No other healthy upstream");
  await tabTo(page, "#dialog-confirm");
  await page.keyboard.press("Enter");
  await has(page, "#toast", "two is being drained");
  await has(page, '#upstreams tr[data-id="two"]', "Drained");
  await has(page, "#timeline", "token: drain two");

  await step("drained");
  // Nobody is left: searches are told so, and the page says that they fail.
  await has(page, "#verdict-title", "Search is failing");
  await picture(page, "drained");
  const cookies = await page.context().cookies();
  if (!cookies.every((cookie) => cookie.httpOnly && cookie.sameSite === "Strict")) problems.push("a cookie that scripts or other sites can use");

  await page.goto(`${admin}/dashboard/api`);
  await has(page, "#routes summary", "/v1/embeddings");
  await page.locator("#post_v1_embeddings > summary").press("Enter");
  await has(page, "#post_v1_embeddings .members", "encoding_format");
  await has(page, "#post_v1_embeddings .answer", "upstream_circuit_open");
  await page.locator("#search").fill("credit");
  await page.waitForFunction(() => [...document.querySelectorAll(".route")].filter((route) => route.offsetParent !== null).length === 1, null, { timeout: PATIENCE });
  await page.locator("#search").fill("");
  await picture(page, "routes");

  if (problems.length > 0) throw new Error(problems.join("\n"));
  console.log("done");
} catch (error) {
  for (const page of browser.contexts().flatMap((context) => context.pages())) {
    await page.screenshot({ path: join(pictures, "failed.png"), fullPage: true });
    problems.push(await page.evaluate(() => document.body.innerText));
  }
  console.error(error.message, problems.join("\n"));
  process.exitCode = 1;
} finally {
  await browser.close();
  process.stdin.destroy();
}
