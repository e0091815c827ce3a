// Format figures as text. Times are integer nanoseconds; memory is bytes or counted microbatches.
const NS = { min: 6e10, s: 1e9, ms: 1e6, "µs": 1e3, ns: 1 };

function unitFor(ns) {
  if (ns >= 1e9) return "s";
  if (ns >= 1e6) return "ms";
  return ns >= 1e3 ? "µs" : "ns";
}

function trim(value, digits) {
  return value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

function timeText(ns, unit = unitFor(ns)) {
  const value = ns / NS[unit];
  return `${trim(value, value >= 100 ? 1 : value >= 10 ? 2 : 3)}\u202f${unit}`;
}

function memoryText(value, unit) {
  if (unit.word !== "bytes") return `${trim(value / unit.size, 2)}\u202f${value === unit.size ? unit.one : unit.word}`;
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < names.length - 1) { value /= 1024; step += 1; }
  return `${trim(value, value >= 100 ? 0 : 1)}\u202f${names[step]}`;
}

function percentText(share) {
  return `${(100 * share).toFixed(1)}\u202f%`;
}

// Return round steps for an axis of about `count` ticks.
function niceStep(span, count) {
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5]) if (factor * power >= rough) return factor * power;
  return 10 * power;
}

function ticks(from, to, count) {
  const step = niceStep(to - from, count);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, i) => (first + i) * step);
}

const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes = {}, parent = null, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function html(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}
