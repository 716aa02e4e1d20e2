/* The built page, build/replan.html, in headless Chromium, from file://. REPLAN: the command line of
   the library; CHROMIUM: the browser. */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

export const FILE = fileURLToPath(new URL("../../build/replan.html", import.meta.url));
export const PAGE = pathToFileURL(FILE).href;
export const FOLDER = mkdtempSync(join(tmpdir(), "page-"));
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
FLAGS.push("--disable-background-networking", "--disable-component-update", "--disable-sync");

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS });
export const requests = [];
after(() => browser.close());

/* A page; the tests evaluate code in it, which its own policy refuses. */
export async function open(address = "", settings = {}) {
  const page = await browser.newPage({
    bypassCSP: true,
    viewport: { width: 1280, height: 900 },
    ...settings,
  });
  page.on("request", (request) => requests.push(request.url()));
  const failed = new Promise((_, fail) => page.on("pageerror", fail));
  page.on("pageerror", (error) => assert.fail(error.stack));
  await page.goto(address.startsWith("file:") ? address : PAGE + address);
  await Promise.race([page.locator("#reading:not(:empty)").waitFor(), failed]);
  return page;
}

export async function download(page, name, path = join(FOLDER, name)) {
  const coming = page.waitForEvent("download");
  await page.getByRole("button", { name }).click();
  await (await coming).saveAs(path);
  return readFileSync(path, "utf8");
}

export async function best(page) {
  await page.getByRole("button", { name: "Show me the best" }).click();
  await page.locator("#reading").filter({ hasText: "The best found ends" }).waitFor();
}
