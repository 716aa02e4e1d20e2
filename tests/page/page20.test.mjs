/* The best that the page finds, against `replan solve`, on twenty problems. Python solves them
   while the page searches. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { before, test } from "node:test";
import { promisify } from "node:util";
import { FOLDER, best, download, open } from "./browser.mjs";

const RATES = "fr=given&fl=curve"; // the rates are free, the shares are not
const BOTH = "fl=curve";
const MIXED = "6y.dw"; // 250 steps with half of all samples from the first task
const ADDRESSES = [
  "",
  "#g=0.62&s=3&d=50&n=0.1",
  "#g=0.9&s=4&k=3&d=10",
  "#g=0&s=5&k=6&n=0.3",
  "#g=0.3&s=6&k=3&t=3&d=50",
  "#g=0.7&s=7&k=4&t=4&n=0.1",
  "#g=0.2&s=8&k=5&t=5",
  "#g=0.5&s=9&a=relu",
  "#g=0.8&s=10&a=relu&k=3&d=50&n=0.1",
  "#g=0.3&s=11&a=relu&k=3&t=3&d=10",
  "#g=0.6&s=12&a=linear&k=2",
  "#g=0.3&s=13&a=linear&k=4&t=3&n=0.3",
  `#g=0.3&${RATES}&r=${MIXED}`,
  `#g=0.55&s=14&k=4&d=50&${RATES}&r=${MIXED}&n=0.1`,
  `#g=0.4&s=15&a=relu&${RATES}&r=${MIXED}&d=10`,
  `#g=0.3&${BOTH}`,
  "#g=0.3&fr=constant&fl=constant",
  `#g=0.75&s=16&k=3&n=0.3&${BOTH}`,
  `#g=0.5&s=17&a=relu&${BOTH}&d=10`,
  `#g=0.4&s=18&a=linear&k=3&t=3&${BOTH}`,
];

/* Fixed shares are no part of a problem file: the protocol brings them. */
const SOLVE = `
import json, sys
import replan
values = []
for i in range(${ADDRESSES.length}):
    problem = replan.Problem.load(f"{i}/problem.toml")
    initial = None if problem.control.tasks else replan.Protocol.load(f"{i}/protocol.json")
    values.append(replan.solve(problem, initial=initial).certificate.relaxed_value)
json.dump(values, sys.stdout)
`;

const found = [];
let values; // the library's

before(async () => {
  const pages = [];
  for (const [i, address] of ADDRESSES.entries()) {
    mkdirSync(join(FOLDER, String(i)));
    pages.push(await open(address));
    for (const name of ["problem.toml", "protocol.json"])
      await download(pages[i], name, join(FOLDER, String(i), name));
  }
  const python = join(dirname(process.env.REPLAN), "python");
  const solved = promisify(execFile)(python, ["-c", SOLVE], { cwd: FOLDER });
  for (const page of pages) {
    await best(page);
    found.push(await page.evaluate(valueOfBest));
    await page.close();
  }
  values = JSON.parse((await solved).stdout);
});

function valueOfBest() {
  const { best, state } = window.page;
  return best.losses.slice(-state.tasks).reduce((sum, loss) => sum + loss) / state.tasks;
}

for (const [i, address] of ADDRESSES.entries())
  test(`the best is as good as the library's, to 0.5 %: ${address || "the page"}`, () =>
    assert.ok(found[i] <= 1.005 * values[i], `${found[i]} against ${values[i]}`));
