// The page: one view (a range of time) shared by all panels, and its mouse and keyboard handlers.
const data = JSON.parse(document.getElementById("data").textContent);
const total = Math.max(1, ...data.schedules.map((one) => one.makespan));
const passes = data.schedules.reduce((sum, one) => sum + one.rows.reduce((n, row) => n + row.t.length, 0), 0);
data.onCanvas = passes > data.limit;
data.memoryTop = Math.max(0, ...data.schedules.map((one) => one.peak.value));
const state = { view: { from: 0, to: total }, hover: null, focus: null, brush: null, critical: false };
const panels = data.schedules.map((schedule, number) => new Panel(schedule, data, number));
const tip = document.getElementById("tip");
const axis = document.getElementById("axis");

// Stripes and hatching are shared by all drawings of the page.
function patterns() {
  const node = svg("svg", { width: 0, height: 0, style: "position:absolute" });
  const defs = svg("defs", {}, node);
  const turn = { patternUnits: "userSpaceOnUse", width: 6, height: 6, patternTransform: "rotate(45)" };
  const hatch = svg("pattern", { id: "hatch", ...turn }, defs);
  svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, style: "stroke: var(--hatch); stroke-width: 1.6" }, hatch);
  const stripes = svg("pattern", { id: "stripes", ...turn, patternTransform: "rotate(-45)" }, defs);
  svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, style: "stroke: #fff; stroke-opacity: .26; stroke-width: 2.2" }, stripes);
  document.body.prepend(node);
}

function legend() {
  const swatch = (fill, over, look = "") => {
    const node = svg("svg", { viewBox: "0 0 22 15" });
    const box = { x: .5, y: .5, width: 21, height: 14, rx: 3 };
    svg("rect", { ...box, fill, class: look }, node);
    if (over) svg("rect", { ...box, fill: over }, node);
    return node;
  };
  const item = (node, letter, word) => {
    const line = html("li", {}, node, html("b", { textContent: letter }), ` ${word}`);
    return line;
  };
  const items = data.kinds.map((kind) => item(swatch(kind.fills[0][0], kind.striped && "url(#stripes)", `edge-${kind.edge}`), kind.name, kind.word));
  const idle = item(swatch("var(--row)", "url(#hatch)"), "", "bubble");
  const cut = data.kinds.find((kind) => kind.fills.length > 1);
  const later = cut ? [item(swatch(cut.fills.at(-1)[0]), "", "later chunk: lighter")] : [];
  document.getElementById("legend").append(...items, ...later, idle);
}

// The table of key figures, and each schedule's time by cause as bars on one scale.
function glance() {
  // Measured steps may say nothing of memory.
  const memory = data.memoryTop > 0 ? ["peak memory"] : [];
  const head = html("tr", {}, ...["schedule", null, "makespan", "against first", "bubble", ...memory].map((word) =>
    html("th", { scope: "col" }, word === null ? causesLegend() : word)));
  const best = (key) => Math.min(...data.schedules.map(key));
  const shortest = best((one) => one.makespan), leanest = best((one) => one.peak.value), fullest = best((one) => one.bubble);
  const many = data.schedules.length > 1;
  const cell = (text, good) => html("td", { className: many && good ? "best" : "" }, text);
  const rows = data.schedules.map((one) => html("tr", {},
    html("td", {}, one.name), html("td", { className: "where" }, bar(one)),
    cell(timeText(one.makespan), one.makespan === shortest),
    cell(one === data.schedules[0] ? "—" : `${(data.schedules[0].makespan / one.makespan).toFixed(2)}×`, false),
    cell(percentText(one.bubble), one.bubble === fullest),
    ...memory.map(() => cell(memoryText(one.peak.value, data.memoryUnit), one.peak.value === leanest))));
  document.getElementById("glance").append(html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
}

function causesLegend() {
  const used = [...data.causes.keys()].filter((i) => data.schedules.some((one) => one.causes[i] > 0));
  return html("ul", { className: "causes" }, ...used.map((i) => {
    const dot = html("i");
    dot.style.background = `var(--cause-${i})`;
    return html("li", {}, dot, data.causes[i]);
  }));
}

function bar(one) {
  const node = svg("svg", { viewBox: "0 0 1000 18", preserveAspectRatio: "none" });
  const label = one.causes.map((share, i) => `${data.causes[i]} ${percentText(share)}`).join(", ");
  svg("title", {}, node, label);
  let x = 0;
  one.causes.forEach((share, i) => {
    const width = 1000 * share * one.makespan / total;
    if (width > 0) svg("rect", { x, y: 2, width: Math.max(width - 1.5, .5), height: 14, style: `fill: var(--cause-${i})` }, node);
    x += width;
  });
  return node;
}

function drawAxis(width) {
  const { from, to } = state.view;
  const unit = unitFor(to);
  const scale = (width - GUTTER) / (to - from);
  const marks = ticks(from, to, (width - GUTTER) / 110);
  const fine = Math.max(0, Math.ceil(-Math.log10((marks[1] - marks[0] || 1) / NS[unit]) - 1e-9));
  axis.replaceChildren(...marks.map((time) => {
    const x = GUTTER + (time - from) * scale;
    const anchor = x > width - 30 ? "end" : "middle";
    return svg("text", { x, y: 22, "text-anchor": anchor }, null, `${(time / NS[unit]).toFixed(fine)}\u202f${unit}`);
  }));
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function draw() {
  const width = panels[0].plot.clientWidth;
  drawAxis(width);
  for (const panel of panels) panel.draw(state.view, width);
  drawOver();
}

function setView(from, to) {
  const least = Math.max(total / 50000, 20);
  const span = Math.min(Math.max(to - from, least), total);
  const middle = (from + to) / 2;
  const start = Math.min(Math.max(middle - span / 2, 0), total - span);
  state.view = { from: start, to: start + span };
  redraw();
}

function zoom(factor, at = (state.view.from + state.view.to) / 2) {
  const { from, to } = state.view;
  setView(at - (at - from) * factor, at + (to - at) * factor);
}

// Drawn above the passes: the selected microbatch and the pass under the pointer.
function drawOver() {
  for (const panel of panels) {
    const parts = [];
    const followed = state.focus ?? state.hover?.microbatch ?? null;
    if (state.focus !== null) parts.push(svg("rect", { class: "veil", width: panel.width, height: panel.rowsHeight }));
    if (followed !== null && followed >= 0) parts.push(...kin(panel, followed, state.focus !== null));
    if (state.critical) parts.push(...chain(panel));
    if (state.hover) parts.push(...pointer(panel, state.hover));
    if (state.brush?.panel) {
      const [a, b] = [state.brush.start, state.brush.end].map((time) => panel.x(time)).sort((p, q) => p - q);
      parts.push(svg("rect", { class: "brush", x: a, y: 0, width: b - a, height: panel.height }));
    }
    panel.over.replaceChildren(...parts);
  }
}

function outline(panel, row, rank, i, extra) {
  const x = panel.x(row.s[i]);
  return svg("rect", { x: x + .5, y: panel.boxes[rank].y, width: Math.max(row.d[i] * panel.scale - 1, 1), height: panel.boxes[rank].height, rx: 2, ...extra });
}

function kin(panel, microbatch, solid) {
  const parts = [];
  panel.schedule.rows.forEach((row, rank) => {
    for (let i = firstAfter(row, panel.view.from); i < row.s.length && row.s[i] < panel.view.to; i += 1) {
      if (row.m[i] !== microbatch) continue;
      const [fill, ink] = panel.colours(row, i);
      if (solid) {
        parts.push(outline(panel, row, rank, i, { fill }));
        const width = row.d[i] * panel.scale, label = panel.label(row, i, width);
        const text = { class: "label", x: panel.x(row.s[i]) + width / 2, y: panel.boxes[rank].middle + .5, style: `fill: ${ink}` };
        if (label) parts.push(svg("text", text, null, label));
      }
      parts.push(outline(panel, row, rank, i, { class: "kin outline" }));
    }
  });
  return parts;
}

function chain(panel) {
  return panel.schedule.critical.map(([rank, i]) => outline(panel, panel.schedule.rows[rank], rank, i, { class: "mark critical" }));
}

function pointer(panel, hover) {
  const x = panel.x(hover.time);
  const parts = hover.keyboard ? [] : [svg("line", { class: "cursor-line", x1: x, x2: x, y1: 0, y2: panel.height })];
  if (panel !== hover.panel || hover.index < 0) return parts;
  return [...parts, outline(panel, panel.schedule.rows[hover.rank], hover.rank, hover.index, { class: "mark hovered" })];
}

function describe({ panel, rank, index, next, time }) {
  const { schedule } = panel;
  const row = schedule.rows[rank];
  const lines = [];
  const where = row.lane ? ["communicator", row.label] : ["rank", rank];
  const held = panel.memoryAt(rank, time);
  const memory = held === null ? [] : [["memory", memoryText(held, data.memoryUnit)]];
  if (index < 0) {
    const start = next > 0 ? row.s[next - 1] + row.d[next - 1] : 0;
    const end = next < row.s.length ? row.s[next] : schedule.makespan;
    const rest = [where, ["from", timeText(start)], ["to", timeText(end)], ["length", timeText(end - start)], ...memory];
    return { title: "bubble", fill: null, lines: rest };
  }
  const kind = data.kinds[row.k[index]];
  const place = schedule.chunks > 1 && kind.staged ? `${row.g[index]}, chunk ${row.c[index]}` : row.g[index];
  if (kind.staged) lines.push(["stage", place]);
  lines.push(where);
  if (row.m[index] >= 0) lines.push(["microbatch", row.m[index]]);
  const end = row.s[index] + row.d[index];
  lines.push(["start", timeText(row.s[index])], ["end", timeText(end)], ["duration", timeText(row.d[index])], ...memory);
  return { title: row.t[index], word: kind.word, fill: panel.colours(row, index)[0], lines };
}

function showTip(x, y) {
  const { title, word, fill, lines } = describe(state.hover);
  const head = html("div", {});
  if (fill) { const dot = html("i"); dot.style.background = fill; head.append(dot); }
  head.append(html("b", {}, title), word ? `  ${word}` : "");
  const table = html("table", {}, ...lines.map(([name, value]) => html("tr", {}, html("td", {}, name), html("td", {}, `${value}`))));
  tip.replaceChildren(head, table);
  tip.hidden = false;
  const left = x + 18 + tip.offsetWidth > innerWidth ? x - 14 - tip.offsetWidth : x + 18;
  const top = y + 18 + tip.offsetHeight > innerHeight ? y - 12 - tip.offsetHeight : y + 18;
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

function hover(found, x, y, keyboard = false) {
  state.hover = found && { ...found, keyboard, microbatch: found.index >= 0 ? found.panel.schedule.rows[found.rank].m[found.index] : null };
  if (found) showTip(x, y); else tip.hidden = true;
  drawOver();
}

function follow(found) {
  const microbatch = found && found.index >= 0 ? found.panel.schedule.rows[found.rank].m[found.index] : -1;
  state.focus = microbatch >= 0 && microbatch !== state.focus ? microbatch : null;
  drawOver();
}

// Arrow keys: along the row, or to the pass of the neighbouring rank that is nearest in time.
function walk(panel, along, across) {
  const { rows } = panel.schedule;
  const old = state.hover?.panel === panel && state.hover.index >= 0 ? state.hover : null;
  const rank = old ? (old.rank + across + rows.length) % rows.length : 0;
  const row = rows[rank];
  if (!row.s.length) return;
  let index = old ? old.index + along : firstAfter(row, state.view.from);
  if (old && across) index = firstAfter(row, rows[old.rank].s[old.index]);
  index = Math.min(Math.max(index, 0), row.s.length - 1);
  const { from, to } = state.view, start = row.s[index], end = start + row.d[index];
  if (start < from || end > to) { setView(start - (to - from) / 2, start + (to - from) / 2); draw(); }
  const box = panel.plot.getBoundingClientRect();
  const time = start + row.d[index] / 2;
  hover({ panel, rank, index, next: index, time }, box.left + GUTTER + panel.x(time), box.top + panel.boxes[rank].bottom - 12, true);
}

function onKey(panel, event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (event.key in moves && !event.shiftKey) walk(panel, ...moves[event.key]);
  else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const step = (state.view.to - state.view.from) * (event.key === "ArrowLeft" ? -.2 : .2);
    setView(state.view.from + step, state.view.to + step);
  } else if (event.key === "Enter" && state.hover) follow(state.hover);
  else return;
  event.preventDefault();
}

function onPage(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "+" || event.key === "=") zoom(.6);
  else if (event.key === "-") zoom(1 / .6);
  else if (event.key === "0") setView(0, total);
  else if (event.key === "c") { state.critical = !state.critical; drawOver(); }
  else if (event.key === "Escape") { state.focus = null; hover(null); }
}

function listen(panel) {
  const place = (event) => {
    const box = panel.plot.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const timeAt = (event) => state.view.from + (place(event)[0] - GUTTER) / panel.scale;
  panel.plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    state.brush = { start: timeAt(event), end: timeAt(event), x: event.clientX, pan: event.shiftKey, panel: null };
    panel.plot.setPointerCapture?.(event.pointerId);
  });
  panel.plot.addEventListener("pointermove", (event) => {
    const { brush } = state;
    if (brush && Math.abs(event.clientX - brush.x) > 4) brush.panel = panel;
    if (brush?.pan && brush.panel) {
      const shift = brush.start - timeAt(event);
      setView(state.view.from + shift, state.view.to + shift);
    } else if (brush?.panel) { brush.end = timeAt(event); tip.hidden = true; state.hover = null; drawOver(); }
    else hover(panel.at(...place(event)), event.clientX, event.clientY);
  });
  panel.plot.addEventListener("pointerup", (event) => {
    const { brush } = state;
    state.brush = null;
    if (brush?.panel && !brush.pan) setView(Math.min(brush.start, brush.end), Math.max(brush.start, brush.end));
    else if (brush && !brush.panel) follow(panel.at(...place(event)));
  });
  panel.plot.addEventListener("pointercancel", () => { state.brush = null; drawOver(); });
  panel.plot.addEventListener("pointerleave", () => { if (!state.brush) hover(null); });
  panel.plot.addEventListener("dblclick", () => setView(0, total));
  panel.plot.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * .002), timeAt(event));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      const shift = (event.deltaX || event.deltaY) / panel.scale;
      setView(state.view.from + shift, state.view.to + shift);
    } else return;
    event.preventDefault();
  }, { passive: false });
  panel.plot.addEventListener("keydown", (event) => onKey(panel, event));
  panel.plot.addEventListener("blur", () => hover(null));
}

patterns();
legend();
glance();
for (const panel of panels) {
  document.getElementById("panels").append(panel.element);
  listen(panel);
}
document.getElementById("in").addEventListener("click", () => zoom(.6));
document.getElementById("out").addEventListener("click", () => zoom(1 / .6));
document.getElementById("fit").addEventListener("click", () => setView(0, total));
document.addEventListener("keydown", onPage);
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
draw();
