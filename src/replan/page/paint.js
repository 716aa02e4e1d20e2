/* Painting on a bar by pointer, touch and keyboard. A bar is a box on the page whose width is time
   and whose height is a level from 0 to 1; it tells what was painted and knows nothing else. */

const CELL = 10; // steps that the keyboard moves and paints at once
const MOVES = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }; // cells
const TURNS = { ArrowUp: 0.05, ArrowDown: -0.05, PageUp: 0.25, PageDown: -0.25 };

/** Let one paint on `box`. level(step): what is there; write(step, level): what was painted; begin():
    a stroke begins; painted(): so did a part of it; undo(): it was none; describe(step): words. */
export function paintable(box, steps, { begin, level, write, painted, undo, describe }) {
  let first, last; // places of the pointer
  let cursor = 0; // step of the keyboard
  let area; // of the box when the stroke began, whatever moves while it lasts

  const place = ({ clientX, clientY }) => {
    const { left, top, width, height } = area;
    const snapped = (part, edge) => (part < edge ? 0 : part > 1 - edge ? 1 : part);
    const step = Math.floor(snapped((clientX - left) / width, 0.02) * steps);
    const high = snapped(1 - (clientY - top) / height, 0.04);
    return { step: Math.min(steps - 1, step), level: high };
  };
  const stroke = (event) => {
    const now = place(event);
    const [a, b] = last.step < now.step ? [last, now] : [now, last];
    const slope = (b.level - a.level) / (b.step - a.step);
    for (let step = a.step; step <= b.step; step++)
      write(step, a.step < b.step ? a.level + slope * (step - a.step) : now.level);
    last = now;
    painted();
  };

  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    box.setPointerCapture(event.pointerId); // until it is lifted
    area = box.getBoundingClientRect();
    begin();
    first = last = place(event);
    stroke(event);
  });
  box.addEventListener("pointermove", (event) => {
    if (box.hasPointerCapture(event.pointerId)) stroke(event);
  });
  box.addEventListener("pointerup", ({ pointerId }) => {
    if (box.hasPointerCapture(pointerId) && first.step === last.step)
      fill(Math.max(0, first.step - CELL / 2), last.level); // a click
  });
  box.addEventListener("pointercancel", undo); // it was a finger that scrolls

  const fill = (from, level) => {
    for (let step = from; step < Math.min(steps, from + CELL); step++) write(step, level);
    painted();
  };
  box.addEventListener("keydown", (event) => {
    const { key } = event;
    if (!(key in MOVES || key in TURNS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(1, level(cursor) + (TURNS[key] ?? 0)));
    cursor = Math.max(0, Math.min(steps - CELL, cursor + CELL * (MOVES[key] ?? 0)));
    if ((key in TURNS || event.shiftKey) && level(cursor) !== next) {
      begin();
      fill(cursor, next);
    }
    say();
  });
  const say = () => {
    box.setAttribute("aria-valuenow", String(Math.round(100 * level(cursor))));
    box.setAttribute("aria-valuetext", describe(cursor));
    box.style.setProperty("--cursor", cursor / steps); // where the style draws it
  };
  say();
  return say;
}
