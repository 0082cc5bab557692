// Drives the dashboard in Chromium: a collection's stage is changed behind a dialog and told everywhere.
// Arguments: the admin side's URL, its token, the driver library's folder, a folder for pictures. Says "done" on standard
// output.

import { createRequire } from "node:module";
import { join } from "node:path";

const [admin, token, library, pictures] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(library);
const PATIENCE = 30000;

const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });

const has = (page, selector, text) => page.waitForFunction(
  ([where, what]) => [...document.querySelectorAll(where)].some((node) => node.textContent.includes(what)),
  [selector, text],
  { timeout: PATIENCE },
);

try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1000 } });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && problems.push(`console: ${message.text()}`));
  await page.goto(`${admin}/dashboard`);
  await page.waitForSelector("#login:not([hidden])", { timeout: PATIENCE });
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  const row = '#collections tr[data-id="handbook"]';
  await has(page, row, "Old model only");
  await has(page, row, "0 % of 3");
  await has(page, "#verdict-facts", "emb-b on 2020-01-31, is over");

  await page.click('button[aria-label="Change stage handbook"]');
  await page.waitForSelector("dialog[open]", { timeout: PATIENCE });
  await has(page, "#dialog-title", "Stage of handbook");
  await page.check('#dialog input[value="canary"]');
  await page.fill("#canary", "25");
  await page.screenshot({ path: join(pictures, "stage-dialog.png") });
  await page.click("#dialog-confirm");
  await has(page, "#toast", "Stage of handbook changed");
  await has(page, row, "Canary, 25 %");
  await has(page, "#timeline", "Collection handbook moved from old to canary 0.25");
  await has(page, "#timeline", "token: set_stage handbook");
  for (const width of [390, 1440]) {
    await page.setViewportSize({ width, height: 1000 });
    await page.waitForTimeout(300);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (overflow > 0) problems.push(`${overflow} px too wide at ${width}`);
    await page.screenshot({ path: join(pictures, `stages-${width}.png`), fullPage: true });
  }
  if (problems.length > 0) throw new Error(problems.join("\n"));
  console.log("done");
} catch (error) {
  for (const page of browser.contexts().flatMap((context) => context.pages())) {
    await page.screenshot({ path: join(pictures, "failed-stages.png"), fullPage: true });
    problems.push(await page.evaluate(() => document.body.innerText));
  }
  console.error(error.message, problems.join("\n"));
  process.exitCode = 1;
} finally {
  await browser.close();
  process.stdin.destroy();
}
