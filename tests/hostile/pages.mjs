// Opens the dashboard of a gateway whose names are markup. Arguments: the admin side's URL, the markup, a tenant's
// name, the driver library's folder. Says "shown" when every kind of name stands on the page as text and nothing of it was carried out.

import { createRequire } from "node:module";

const [admin, markup, tenant, library] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(library);
const PATIENCE = 30000;
const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1000 } });
  page.on("dialog", (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (message) => { if (message.type() === "error") problems.push(`console: ${message.text()}`); });
  page.on("request", (request) => { if (new URL(request.url()).pathname.endsWith("/x")) problems.push(`request: ${request.url()}`); });
  await page.goto(`${admin}/dashboard`);
  await page.waitForSelector('#live[data-state="live"]', { timeout: PATIENCE });
  for (const name of [tenant, `made${tenant}`, `upstream${markup}`]) {
    await page.waitForFunction((text) => document.body.innerText.includes(text), name, { timeout: PATIENCE });
  }
  await page.waitForFunction((text) => document.querySelector("#timeline").textContent.includes(text), markup, { timeout: PATIENCE });
  // Orders are behind a dialogue that names what they are for.
  await page.locator(`button[aria-label="Drain upstream${markup}"]`).first().click({ timeout: PATIENCE });
  await page.waitForSelector("dialog[open]", { timeout: PATIENCE });
  if (!(await page.locator("#dialog-title").innerText()).includes(markup)) problems.push("the dialogue does not show the name");
  if (await page.evaluate(() => window.hurt !== undefined || document.querySelector('img[src="x"]') !== null)) problems.push("the markup was taken for markup");
  if (problems.length > 0) throw new Error(problems.join("\n"));
  console.log("shown");
} catch (error) {
  console.error(error.message, problems.join("\n"));
  process.exitCode = 1;
} finally {
  await browser.close();
}
