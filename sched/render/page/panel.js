// One schedule: rows of passes, and below them the memory of every rank.
// Passes are SVG nodes, or, where a page has more than data.limit of them, painted on a canvas.
const GUTTER = 62;
const MEMORY_HEIGHT = 76;
const LANE_HEIGHT = 13;

function rowHeight(ranks) {
  return ranks <= 8 ? 26 : ranks <= 16 ? 19 : 13;
}

// Return the first index whose end is after `time`; ends rise along a row.
function firstAfter(row, time) {
  let low = 0, high = row.s.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.s[middle] + row.d[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

class Panel {
  constructor(schedule, data, number) {
    this.schedule = schedule;
    this.data = data;
    this.number = number;
    this.ranks = schedule.rows.filter((row) => !row.lane).length;
    this.pitch = rowHeight(this.ranks);
    this.boxes = this.layout();
    this.rowsHeight = this.boxes.at(-1).bottom;
    this.height = this.rowsHeight + (schedule.memory.length ? MEMORY_HEIGHT + 22 : 6);
    this.onCanvas = data.onCanvas;
    this.build();
  }

  // The position of every row; communicators' lanes are below the ranks and lower.
  layout() {
    let bottom = 0;
    return this.schedule.rows.map((row) => {
      const top = bottom + (row.lane && bottom === this.ranks * this.pitch ? 4 : 0);
      bottom = top + (row.lane ? LANE_HEIGHT : this.pitch);
      return { top, bottom, y: top + 1, height: bottom - top - 2, middle: (top + bottom) / 2 };
    });
  }

  build() {
    const { schedule, data } = this;
    this.plot = html("div", { className: "plot", tabIndex: 0 });
    this.plot.dataset.schedule = schedule.name;
    this.plot.setAttribute("role", "application");
    this.plot.setAttribute("aria-label",
      `${schedule.name}: timeline of ${this.ranks} ranks, ${timeText(schedule.makespan)}. Arrow keys walk.`);
    this.svg = svg("svg", { height: this.height }, null);
    if (this.onCanvas) {
      this.canvas = html("canvas");
      this.context = this.canvas.getContext("2d");
    }
    schedule.rows.forEach((row, i) => {
      const label = !row.lane && this.pitch < 16 && i % 2 ? "" : row.label;
      svg("text", { class: "rank", x: 0, y: this.boxes[i].middle, "dominant-baseline": "central" }, this.svg, label);
    });
    this.area = svg("svg", { x: GUTTER, y: 0, height: this.height, class: "area" }, this.svg);
    this.rows = svg("g", { class: "rows" }, this.area);
    this.bands = schedule.rows.map((row, i) => {
      const box = { y: this.boxes[i].y, height: this.boxes[i].height, rx: 2 };
      return [svg("rect", { ...box, class: "row" }, this.rows), svg("rect", { ...box, fill: row.lane ? "none" : "url(#hatch)" }, this.rows)];
    });
    this.grid = svg("g", { class: "grid" }, this.area);
    this.passes = svg("g", { class: "passes" }, this.area);
    if (!this.onCanvas) this.nodes = schedule.rows.map((row, rank) => row.t.map((_, i) => this.node(row, rank, i)));
    this.endLine = svg("line", { class: "end-line", y1: 0, y2: this.rowsHeight }, this.area);
    this.endText = svg("text", { class: "end halo", y: 14 }, this.area, timeText(schedule.makespan));
    this.memory = svg("g", { class: "memory" }, this.area);
    this.over = svg("g", { class: "over" }, this.area);
    if (this.onCanvas) this.plot.append(this.canvas);
    this.plot.append(this.svg);
    if (schedule.memory.length) {
      const middle = this.rowsHeight + 16 + MEMORY_HEIGHT / 2;
      svg("text", { class: "rank", x: 0, y: middle - 7 }, this.svg, "memory");
      svg("text", { class: "rank", x: 0, y: middle + 7 }, this.svg, "per rank");
    }
    const figures = html("dl", {}, ...schedule.figures.map(([name, value]) =>
      html("div", {}, html("dt", {}, name), html("dd", {}, value))));
    this.element = html("section", { className: "panel" },
      html("header", {}, html("h2", {}, schedule.name, html("small", {}, schedule.note)), figures), this.plot);
  }

  node(row, rank, i) {
    const [fill] = this.colours(row, i), kind = this.data.kinds[row.k[i]];
    const node = svg("rect", {
      class: `pass edge-${kind.edge}`, "data-pass": row.t[i], "data-row": row.label, "data-kind": kind.name,
      y: this.boxes[rank].y, height: this.boxes[rank].height, rx: 2, fill,
    }, this.passes);
    return { node, text: null };
  }

  colours(row, i) {
    const kind = this.data.kinds[row.k[i]];
    return kind.fills[Math.min(row.c[i], kind.fills.length - 1)];
  }

  // Return the words in a pass: kind and microbatch if they fit, else the microbatch, else none.
  label(row, i, width) {
    if (this.pitch < 16 || row.lane) return "";
    const number = row.m[i] < 0 ? "" : `${row.m[i]}`;
    const kind = this.data.kinds[row.k[i]].name;
    if (width >= 8 + 7.2 * (kind.length + number.length)) return kind + number;
    return width >= 3 + 6.5 * number.length ? number : "";
  }

  x(time) { return (time - this.view.from) * this.scale; }

  draw(view, width) {
    this.view = view;
    this.width = Math.max(width - GUTTER, 10);
    this.scale = this.width / (view.to - view.from);
    this.svg.setAttribute("width", width);
    this.area.setAttribute("width", this.width);
    const end = Math.max(0, this.x(this.schedule.makespan) - Math.max(0, this.x(0)));
    for (const pair of this.bands) for (const band of pair) {
      band.setAttribute("x", Math.max(0, this.x(0)));
      band.setAttribute("width", Math.min(end, this.width));
    }
    this.grid.replaceChildren(...ticks(view.from, view.to, this.width / 110).map((time) =>
      svg("line", { x1: this.x(time), x2: this.x(time), y1: this.onCanvas ? this.rowsHeight : 0, y2: this.height })));
    if (this.onCanvas) this.paint(); else this.place();
    this.drawEnd();
    this.drawMemory();
  }

  // The makespan: a line with its time beside it, unless passes are there.
  drawEnd() {
    const x = this.x(this.schedule.makespan), edge = Math.min(x, this.width - .75);
    const inside = x > this.width - 64;
    for (const side of ["x1", "x2"]) this.endLine.setAttribute(side, x <= this.width + 1 ? edge : x);
    this.endText.setAttribute("x", inside ? x - 7 : x + 7);
    this.endText.setAttribute("text-anchor", inside ? "end" : "start");
    this.endText.style.display = inside && this.isCrowded(x - 70) ? "none" : "";
  }

  // Return whether the first rank works after this point.
  isCrowded(x) {
    const row = this.schedule.rows[0], last = row.s.length - 1;
    return last >= 0 && this.x(row.s[last] + row.d[last]) > x;
  }

  place() {
    const striped = this.data.kinds.map((kind) => kind.striped);
    this.schedule.rows.forEach((row, rank) => {
      this.nodes[rank].forEach((entry, i) => {
        const left = this.x(row.s[i]);
        const right = left + row.d[i] * this.scale;
        const hidden = right < -1 || left > this.width + 1;
        entry.node.style.display = hidden ? "none" : "";
        if (hidden) { if (entry.text) entry.text.style.display = "none"; return; }
        const gap = right - left > 4 ? .5 : 0;
        entry.node.setAttribute("x", left + gap);
        entry.node.setAttribute("width", Math.max(right - left - 2 * gap, .6));
        this.write(entry, row, rank, i, left, right, striped[row.k[i]]);
      });
    });
  }

  write(entry, row, rank, i, left, right, striped) {
    const width = Math.min(right, this.width) - Math.max(left, 0);
    const label = this.label(row, i, width);
    if (striped && !entry.stripes) {
      entry.stripes = svg("rect", { class: "stripes", fill: "url(#stripes)", rx: 2, y: this.boxes[rank].y, height: this.boxes[rank].height });
      entry.node.after(entry.stripes);
    }
    if (striped) for (const name of ["x", "width"]) entry.stripes.setAttribute(name, entry.node.getAttribute(name));
    if (!entry.text && label) {
      entry.text = svg("text", { class: "label", y: this.boxes[rank].middle + .5, fill: this.colours(row, i)[1] });
      (entry.stripes || entry.node).after(entry.text);
      entry.text.style.fill = this.colours(row, i)[1];
    }
    if (!entry.text) return;
    entry.text.style.display = label ? "" : "none";
    entry.text.textContent = label;
    entry.text.setAttribute("x", (Math.max(left, 0) + Math.min(right, this.width)) / 2);
  }

  // Draw tens of thousands of passes; those narrower than a pixel share its column by their time.
  paint() {
    const ratio = window.devicePixelRatio || 1;
    const { canvas, context } = this;
    canvas.width = this.width * ratio;
    canvas.height = this.rowsHeight * ratio;
    Object.assign(canvas.style, { left: `${GUTTER}px`, top: 0, width: `${this.width}px`, height: `${this.rowsHeight}px` });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "550 11px Inter, system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.paintBubbles();
    this.schedule.rows.forEach((row, number) => this.paintRow(row, this.boxes[number], 1 / ratio));
  }

  // The rows of the SVG would cover the canvas, so the canvas draws its own.
  paintBubbles() {
    this.rows.remove();
    const style = getComputedStyle(document.documentElement);
    const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
    const stroke = tile.getContext("2d");
    stroke.strokeStyle = style.getPropertyValue("--hatch");
    stroke.lineWidth = 1.4;
    for (const shift of [-8, 0, 8]) { stroke.moveTo(shift, 8); stroke.lineTo(shift + 8, 0); }
    stroke.stroke();
    const left = Math.max(0, this.x(0)), width = this.x(this.schedule.makespan) - left;
    for (const fill of [style.getPropertyValue("--row"), this.context.createPattern(tile, "repeat")]) {
      this.context.fillStyle = fill;
      for (const { y, height } of this.boxes) this.context.fillRect(left, y, width, height);
    }
  }

  paintRow(row, { y, height }, pixel) {
    const { context } = this;
    const kinds = this.data.kinds.length;
    const shares = new Float32Array(Math.ceil(this.width / pixel + 1) * kinds);
    for (let i = firstAfter(row, this.view.from); i < row.s.length && row.s[i] < this.view.to; i += 1) {
      const left = this.x(row.s[i]), width = row.d[i] * this.scale;
      if (width < 1.5 * pixel) {
        for (let x = Math.max(left, 0); x < Math.min(left + width, this.width);) {
          const column = Math.floor(x / pixel), end = Math.min((column + 1) * pixel, left + width);
          shares[column * kinds + row.k[i]] += (end - x) / pixel;
          x = Math.max(end, x + 1e-6);
        }
        continue;
      }
      const [fill, ink] = this.colours(row, i);
      const gap = width > 4 ? .5 : 0;
      context.fillStyle = fill;
      context.fillRect(left + gap, y, width - 2 * gap, height);
      const label = this.label(row, i, width);
      context.fillStyle = ink;
      if (label) context.fillText(label, left + width / 2, y + height / 2 + .5);
    }
    this.paintShares(shares, kinds, y, height, pixel);
  }

  paintShares(shares, kinds, y, height, pixel) {
    const fills = this.data.kinds.map((kind) => kind.fills[0][0]);
    for (let place = 0, top = 0; place < shares.length; place += 1) {
      const kind = place % kinds;
      if (kind === 0) top = y;
      if (!shares[place]) continue;
      const part = Math.min(shares[place] * height, y + height - top);
      this.context.fillStyle = fills[kind];
      this.context.fillRect(Math.floor(place / kinds) * pixel, top, pixel, part);
      top += part;
    }
  }

  // Return a rank's memory over time as a stepped path, with only the extremes within a pixel.
  memoryPath(steps, top, floor) {
    const y = (value) => floor - (floor - top) * value / (this.data.memoryTop || 1);
    let path = "", value = 0, column = null, low = 0, high = 0;
    for (let i = 0; i < steps.t.length && steps.t[i] <= this.view.to; i += 1) {
      const x = Math.round(this.x(steps.t[i]) * 2) / 2;
      if (x < 0) { value = steps.v[i]; continue; }
      if (path === "") path = `M${Math.max(0, this.x(0))},${y(value)}`;
      if (x !== column) { path += `H${x}`; column = x; low = high = value; }
      value = steps.v[i];
      if (value > high || value < low || steps.t[i + 1] === undefined || Math.round(this.x(steps.t[i + 1]) * 2) / 2 !== x) {
        high = Math.max(high, value); low = Math.min(low, value);
        path += `V${y(value).toFixed(1)}`;
      }
    }
    if (path === "") path = `M0,${y(value)}`;
    return `${path}H${Math.max(0, Math.min(this.width, this.x(this.schedule.makespan)))}`;
  }

  drawMemory() {
    const { memory, peak } = this.schedule;
    if (!memory.length) return;
    const top = this.rowsHeight + 24, floor = this.rowsHeight + 16 + MEMORY_HEIGHT;
    const parts = [svg("line", { class: "memory-floor", x1: 0, x2: this.width, y1: floor, y2: floor })];
    const area = svg("path", { class: "memory-area", d: `${this.memoryPath(memory[peak.rank], top, floor)}V${floor}H0Z` });
    parts.push(area);
    memory.forEach((steps, rank) => {
      const share = memory.length > 1 ? Math.round(100 * rank / (memory.length - 1)) : 0;
      parts.push(svg("path", {
        class: rank === peak.rank ? "memory-line top" : "memory-line", "data-rank": rank, d: this.memoryPath(steps, top, floor),
        style: `stroke: color-mix(in oklab, var(--memory-first), var(--memory-last) ${share}%)`,
      }));
    });
    const x = this.x(peak.time);
    if (x >= 0 && x <= this.width) {
      const y = floor - (floor - top) * peak.value / (this.data.memoryTop || 1);
      parts.push(svg("circle", { cx: x, cy: y, r: 3.5, style: "fill: var(--memory-first); stroke: var(--paper); stroke-width: 1.5" }));
      parts.push(svg("text", { class: "peak halo", x: x + 8, y: y - 5 }, null,
        `${memoryText(peak.value, this.data.memoryUnit)}`));
    }
    this.memory.replaceChildren(...parts);
  }

  memoryAt(rank, time) {
    const steps = this.schedule.memory[rank];
    if (!steps) return null;
    let value = 0;
    for (let i = 0; i < steps.t.length && steps.t[i] <= time; i += 1) value = steps.v[i];
    return value;
  }

  // Return what is at a point of the plot: a pass (index >= 0), a bubble (index -1), or null.
  at(x, y) {
    const rank = this.boxes.findIndex((box) => y >= box.top && y < box.bottom);
    const row = this.schedule.rows[rank];
    const time = this.view.from + (x - GUTTER) / this.scale;
    if (!row || x < GUTTER || time < 0 || time > this.schedule.makespan) return null;
    const index = firstAfter(row, time);
    const hit = index < row.s.length && row.s[index] <= time;
    return { panel: this, rank, index: hit ? index : -1, next: index, time };
  }
}
