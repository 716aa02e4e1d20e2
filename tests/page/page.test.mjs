/* What a visitor does on the page. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { FILE, FOLDER, PAGE, best, download, open, requests } from "./browser.mjs";

const replan = (...words) =>
  execFileSync(process.env.REPLAN, words, { cwd: FOLDER, encoding: "utf8", env: ENVIRONMENT });
const ENVIRONMENT = { ...process.env, BROWSER: "true" };
const reading = (page) => page.locator("#reading").textContent();
const says = (page, words) => page.locator("#reading").filter({ hasText: words }).waitFor();
const settled = (page) => page.waitForTimeout(350); // the address follows the hand after a while

/* The last row of curves.csv: time, losses, … */
async function finalLosses(page, tasks) {
  const rows = (await download(page, "curves.csv")).trim().split("\n");
  return rows
    .at(-1)
    .split(",")
    .slice(1, 1 + tasks)
    .map(Number);
}

async function paint(page, from, to, level, bar = "#paint-shares") {
  await page.locator(bar).scrollIntoViewIfNeeded();
  const { x, y, width, height } = await page.locator(bar).boundingBox();
  await page.mouse.move(x + from * width, y + (1 - level) * height);
  await page.mouse.down();
  await page.mouse.move(x + to * width, y + (1 - level) * height, { steps: 5 });
  await page.mouse.up();
}

const close = (a, b, relative) =>
  assert.ok(Math.abs(a / b - 1) <= relative, `${a} is not ${b} to ${relative}`);

for (const [address, tasks] of [
  ["", 2],
  ["#g=0.55&s=7&n=0.3", 2],
  ["#t=3&k=4&g=0.9", 3],
  ["#t=5&k=6&a=linear&n=0.1", 5],
  ["#t=5&k=6", 5],
  ["#a=relu&g=0.9&l=6y.1jk", 2],
  ["#a=relu&k=3&n=0.3&s=15", 2],
  ["#a=linear&k=4&n=0.3&d=60", 2],
])
  test(`the command line reads the downloads of ${address || "the page"} and gives its numbers`, async () => {
    const page = await open(address);
    await paint(page, 0.5, 0.99, 0.4);
    await download(page, "problem.toml");
    await download(page, "protocol.json");
    replan("evaluate", "problem.toml", "--protocol", "protocol.json", "--json", "out.json");
    const { losses } = JSON.parse(readFileSync(join(FOLDER, "out.json"), "utf8"));
    const shown = await finalLosses(page, tasks);
    shown.forEach((loss, t) => close(loss, losses[t], 1e-8));
    await page.close();
  });

test("painting moves the curves, and undo brings them back", async () => {
  const page = await open();
  const before = await reading(page);
  await paint(page, 0.4, 0.99, 0.45);
  await page.locator("#undo:enabled").waitFor();
  const painted = await finalLosses(page, 2);
  assert.ok(painted[0] < 1e-3, `task 1 is kept: ${painted}`);
  await page.getByRole("button", { name: "Undo" }).click();
  await says(page, before);
  await page.close();
});

test("the best of other settings is not shown, and searched for again", async () => {
  const page = await open();
  await best(page);
  await paint(page, 0.5, 0.6, 0.5);
  assert.match(await reading(page), /The best found ends/); // painting leaves the problem as it was
  await page.locator("#similarity").fill("0.5");
  await page.getByRole("button", { name: "Cancel" }).waitFor();
  assert.doesNotMatch(await reading(page), /The best/);
  assert.equal(await page.locator("svg .best").count(), 0);
  await says(page, "The best found ends");
  await page.locator("#freeShares").selectOption("given");
  await page.getByText("Nothing to search over").waitFor();
  assert.doesNotMatch(await reading(page), /The best/);
  await page.close();
});

test("the best, taken, is the visitor's own to a thousandth of a share", async () => {
  const page = await open();
  await best(page);
  await page.getByRole("button", { name: "Make the best mine" }).click();
  await says(page, "yours matches it");
  await page.close();
});

test("the best is found again at another step, and undo goes back across steps", async () => {
  const page = await open();
  await best(page);
  await paint(page, 0.5, 0.6, 0.5);
  const painted = await reading(page);
  await page.locator("#next").click();
  await page.getByRole("button", { name: "Show me the best" }).waitFor();
  await best(page);
  await page.getByRole("button", { name: "Undo" }).click();
  await says(page, painted);
  await page.close();
});

test("what is switched off is gone", async () => {
  const page = await open("#u=1");
  await says(page, "Over the twenty starts");
  await page.locator("#luck").uncheck();
  await page.locator("svg .faint").first().waitFor({ state: "detached" });
  assert.doesNotMatch(await reading(page), /twenty/);
  await page.close();
});

test("a search can be cancelled, and a change of the problem begins it again", async () => {
  const page = await open("#t=3&k=4&d=100");
  await page.getByRole("button", { name: "Show me the best" }).click();
  await paint(page, 0.2, 0.8, 0.3); // while it searches
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Show me the best" }).click();
  await page.locator("#similarity").fill("0.6");
  await page.waitForFunction(() => window.page.begun.solve?.key.includes("0.6"));
  assert.doesNotMatch(await reading(page), /The best/);
  await page.close();
});

test("every step opens, one after the other", async () => {
  const page = await open();
  const said = new Set();
  for (let step = 1; step <= 11; step++) {
    await page.locator(`#steps li:nth-child(${step}) [aria-current]`).waitFor();
    said.add(await page.locator("#say").textContent());
    assert.match(await reading(page), /(ends at a loss of|Predicted final loss:) [\d.]+/);
    await page.locator("#next").click();
  }
  assert.equal(said.size, 11);
  await page.locator("#steps li:nth-child(5) a").click();
  await page.locator("#paint-rates:visible").waitFor();
  await settled(page);
  const alone = await open("#p=5"); // the step that its link opens
  assert.equal(await reading(alone), await reading(page));
  const own = await open("#g=0.5");
  assert.match(await own.locator("#say").textContent(), /A problem of your own/);
  for (const each of [page, alone, own]) await each.close();
});

test("a link restores everything", async () => {
  const page = await open("#t=3&k=4");
  await page.locator("#paint-rates").waitFor({ state: "hidden" });
  await page.locator("#ratesShown").check();
  await page.getByRole("button", { name: "task 2" }).click();
  await paint(page, 0.1, 0.7, 0.3);
  await page.locator("#similarity").fill("0.62");
  await settled(page);
  const other = await open(page.url());
  for (const name of ["problem.toml", "protocol.json", "curves.csv"])
    assert.equal(await download(other, name), await download(page, name));
  assert.equal(await other.locator("#paint-rates").isVisible(), true);
  const brush = other.getByRole("button", { name: "task 2" });
  assert.equal(await brush.getAttribute("aria-pressed"), "true");
  assert.ok(page.url().length < PAGE.length + 200, page.url());
  await page.close();
  await other.close();
});

test("replan explore opens the problem of a file", async () => {
  const text = (start) => `[model]\nhidden = 2\nsimilarity = 0.45\n[start]\n${start}\n[training]
duration = 20.0\nsteps = 250\nlr = 0.8\n[control]\nlr = { min = 0.0, max = 5.0 }\n`;
  for (const start of [
    "pretrain = { task = 1, duration = 1000.0, seed = 4 }",
    "pretrain = { task = 1, duration = 60.0, seed = 33 }",
  ]) {
    writeFileSync(join(FOLDER, "mine.toml"), text(start));
    const page = await open(replan("explore", "mine.toml").trim());
    replan("evaluate", "mine.toml", "--strategy", "no-replay", "--json", "out.json");
    const { losses } = JSON.parse(readFileSync(join(FOLDER, "out.json"), "utf8"));
    (await finalLosses(page, 2)).forEach((loss, t) => close(loss, losses[t], 1e-7));
    await page.close();
  }
});

test("the keyboard alone paints, asks for the best and undoes", async () => {
  const page = await open();
  const before = await reading(page);
  const focused = () => page.evaluate(() => document.activeElement.id);
  for (let i = 0; i < 30 && (await focused()) !== "paint-shares"; i++)
    await page.keyboard.press("Tab");
  const bar = page.getByRole("slider", { name: "Share of a task over time" });
  assert.match(await bar.getAttribute("aria-valuetext"), /time 0 of 25: task 1 0 %, task 2 100 %/);
  for (const key of ["ArrowRight", "PageUp", "ArrowUp", "Shift+ArrowRight"])
    await page.keyboard.press(key);
  assert.match(await bar.getAttribute("aria-valuetext"), /time 2 of 25: task 1 30 %, task 2 70 %/);
  await page.waitForFunction(
    (old) => document.getElementById("reading").textContent !== old,
    before,
  );
  for (let i = 0; i < 3; i++) await page.keyboard.press("Control+z");
  await says(page, before);
  for (let i = 0; i < 9 && (await focused()) !== "best"; i++)
    await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter");
  await says(page, "The best found ends");
  await page.close();
});

test("every control has a name", async () => {
  const page = await open("#t=5&k=3&lr=1&u=1");
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, [role=slider]")]
      .filter((x) => !(x.textContent.trim() || x.labels?.[0] || x.ariaLabel))
      .map((x) => x.outerHTML),
  );
  assert.deepEqual(nameless, []);
  await page.close();
});

test("SGD in many dimensions lies on the curves", async () => {
  const page = await open("#p=10&N=10000");
  await page.locator("svg .cross").first().waitFor();
  const ratios = await page.evaluate(() => {
    const { begun, losses } = window.page;
    return [...begun.sgd.result].map((loss, i) => loss / losses[i]).sort();
  });
  close(ratios[251], 1, 0.1); // the median; small losses scatter more
  await page.locator("#seed").fill("2");
  await page.waitForFunction(() => !document.querySelector("svg .cross")); // no stale ones
  await page.close();
});

test("the levers are compared, and compared again after a change of the problem", async () => {
  const page = await open("#e=1");
  const row = page.locator("#lever-list li");
  await row.filter({ hasText: /0\.\d/ }).nth(5).waitFor();
  const texts = await row.allTextContents();
  writeFileSync(join(FOLDER, "levers.toml"), await download(page, "problem.toml"));
  replan("levers", "levers.toml", "--json", "levers.json");
  const { levers } = JSON.parse(readFileSync(join(FOLDER, "levers.json"), "utf8"));
  for (const [i, name] of ["nothing", "share", "timing", "rate", "curve", "all"].entries())
    close(Number(texts[i].match(/0\.\d+/)[0]), levers[name], 0.01);
  await page.locator("#seed").fill("2");
  await page.waitForFunction((old) => {
    const rows = [...document.querySelectorAll("#lever-list li")];
    return rows.every((x) => /0\.\d/.test(x.textContent)) && rows[0].textContent !== old;
  }, texts[0]);
  await page.close();
});

test("a law that was dropped is drawn against, planned, and restored by a link", async () => {
  const pilots = fileURLToPath(new URL("../../examples/pilots.csv", import.meta.url));
  replan("fit", pilots, "--out", "law.toml");
  replan("solve", "law.toml", "--json", "plan.json");
  const page = await open("#p=11");
  await page.locator("#file").setInputFiles([join(FOLDER, "law.toml")]);
  await page.getByText("law.toml is open").waitFor();
  await page.locator("svg .dot").nth(10).waitFor(); // what the best pilot measured
  const fits = await page.evaluate(() => {
    const { pilots } = window.page.it.model;
    const { losses, state } = window.page;
    const { steps, losses: measured } = pilots[state.pilot];
    return steps.map((step, i) => losses[Math.round((250 * step) / state.duration)] / measured[i]);
  });
  fits.slice(1).forEach((ratio) => close(ratio, 1, 0.1));
  await page.getByRole("button", { name: "constant-half" }).click();
  await paint(page, 0.5, 0.9, 0.3, "#paint-rates");
  await page.waitForTimeout(350);
  await download(page, "protocol.json");
  replan("evaluate", "law.toml", "--protocol", "protocol.json", "--json", "out.json");
  const { losses } = JSON.parse(readFileSync(join(FOLDER, "out.json"), "utf8"));
  close((await finalLosses(page, 1))[0], losses[0], 1e-10);
  assert.match(await reading(page), /Predicted final loss: [\d.]+, give or take [\d.]+\s%\.$/);
  await best(page);
  const found = await page.evaluate(() => window.page.mean(window.page.best.losses));
  const { candidates } = JSON.parse(readFileSync(join(FOLDER, "plan.json"), "utf8"));
  close(found, candidates.find(({ name }) => name === "plan").loss, 1e-3);
  const other = await open(page.url());
  assert.equal(await download(other, "curves.csv"), await download(page, "curves.csv"));
  const opened = await open(replan("explore", "law.toml").trim());
  await opened.locator("svg .dot").nth(10).waitFor();
  await page.locator("#file").setInputFiles([join(FOLDER, "plan.json")]);
  await page.getByText("plan.json: The file must be a law").waitFor();
  for (const each of [page, other, opened]) await each.close();
});

test("the film plays to the end, and can be stopped", async () => {
  const page = await open("#v=1");
  const bars = () => page.locator("svg .share.task2").last().getAttribute("height");
  const end = await bars();
  await page.getByRole("button", { name: "▶ Play" }).click();
  await page.waitForFunction(() => window.page.played > 20 && window.page.played < 200);
  assert.notEqual(await bars(), end);
  await page.getByRole("button", { name: "■ Stop" }).click();
  assert.equal(await page.evaluate(() => window.page.played), 250);
  assert.equal(await bars(), end); // drawn at once
  await page.close();
});

test("narrow and wide screens show all of it, light and dark", async () => {
  const page = await open();
  for (const width of [360, 390, 1280, 2560]) {
    await page.setViewportSize({ width, height: 800 });
    for (const step of [5, 7, 11]) {
      await page
        .locator("#steps a")
        .nth(step - 1)
        .click();
      await settled(page);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(overflow <= width, `${overflow} of ${width}`);
      const bar = await page.locator(".paint:visible").first().boundingBox();
      assert.ok(bar.width > 0.55 * Math.min(width, 1200), `the bar: ${bar.width} of ${width}`);
    }
  }
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await paper(), "rgb(255, 255, 255)");
  await page.emulateMedia({ colorScheme: "dark" });
  assert.notEqual(await paper(), "rgb(255, 255, 255)");
  await page.close();
});

test("names from a file are drawn as text, not as markup", async () => {
  const page = await open("#t=3&k=3");
  const { images, words } = await page.evaluate(() => {
    window.page.it.names[0] = "<img src=x>";
    window.page.draw();
    const frame = document.getElementById("frame");
    return { images: frame.querySelectorAll("img").length, words: frame.textContent };
  });
  assert.equal(images, 0);
  assert.match(words, /share of <img src=x>/);
  await page.close();
});

test("a click paints a part of the bar, and a finger that scrolls paints nothing", async () => {
  const page = await open();
  const painted = () =>
    page.evaluate(() => window.page.state.shares.filter((x, i) => i % 2 === 0 && x > 0));
  const before = await reading(page);
  await page.locator("#paint-shares").click({ position: { x: 300, y: 20 } });
  assert.equal((await painted()).length, 10);
  await page.getByRole("button", { name: "Undo" }).click();
  await page.locator("#paint-shares").hover({ position: { x: 300, y: 20 } });
  await page.mouse.down();
  assert.ok((await painted()).length > 0);
  await page.locator("#paint-shares").dispatchEvent("pointercancel");
  await says(page, before);
  assert.equal((await painted()).length, 0);
  await page.close();
});

test("touch paints", async () => {
  const page = await open("", {
    hasTouch: true,
    isMobile: true,
    viewport: { width: 390, height: 844 },
  });
  await page.locator("#paint-shares").scrollIntoViewIfNeeded();
  const { x, y, width, height } = await page.locator("#paint-shares").boundingBox();
  const before = await reading(page);
  await page.touchscreen.tap(x + width / 2, y + height / 2);
  await page.locator("#undo:enabled").waitFor();
  assert.notEqual(await reading(page), before);
  await page.close();
});

test("pictures are downloaded, crisp", async () => {
  const page = await open();
  assert.match(await download(page, "picture.svg"), /^<svg .*<\/svg>$/s);
  await download(page, "picture.png");
  const png = readFileSync(join(FOLDER, "picture.png"));
  assert.ok(png.readUInt32BE(16) > 2000); // twice the pixels of the width
  await page.close();
});

test("the page works under its own policy, and asks nobody for anything", async () => {
  const page = await open("", { bypassCSP: false });
  await best(page);
  await page.close();
  const foreign = requests.filter((url) => !/^(file|blob|data):/.test(url));
  assert.deepEqual(foreign, []);
});

test("the file is small", () => assert.ok(statSync(FILE).size <= 250_000));

test("damaged links open the first step and say so", async () => {
  const damaged = [
    "#w=%7B%22model",
    "#x=zzzz&k=2",
    "#x=AAAAAAAAAAA=",
    "#t=99",
    "#d=1e9",
    "#p=3&r=zz",
  ];
  for (const address of [...damaged, "#l=1.1", "#p=7&b=3&t=3", "#N=7", "#r=6y.ruo"]) {
    const page = await open(address);
    await page.locator("#told").filter({ hasText: "damaged" }).waitFor();
    assert.equal(await page.locator("#steps [aria-current]").textContent(), "1 Forgetting");
    await page.close();
  }
});

test("numbers out of their range are refused by name", async () => {
  const page = await open();
  const before = await reading(page);
  for (const [wrong, right] of [
    ["", "25"],
    ["0", "25"],
    ["1e6", "25"],
    ["30", "30"],
  ]) {
    await page.locator("#duration").fill(wrong);
    await page.locator("#duration").blur();
    assert.equal((await page.locator("#told").textContent()) === "", right === wrong);
    await page.waitForFunction((x) => document.getElementById("duration").value === x, right);
    if (right === "25") assert.equal(await reading(page), before);
    else await page.locator("#reading").filter({ hasNotText: before }).waitFor();
  }
  await page.close();
});
