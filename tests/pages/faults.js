// The faults of the open page, a line each: what runs over, breaks, is cut, or is hard to read.
(() => {
  const found = new Set(), width = document.documentElement.clientWidth;
  const say = (kind, text) => found.add(`${kind}: ${text.trim().replace(/\s+/g, " ").slice(0, 60)}`);
  if (document.documentElement.scrollWidth > width) {
    say("the page is wider than the window", `${document.documentElement.scrollWidth} > ${width}`);
  }
  const rgb = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map((v) => v / 255).map((v) => (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
  const over = (top, ground) => {
    const alpha = top[3] === undefined ? 1 : top[3];
    return [0, 1, 2].map((n) => alpha * top[n] + (1 - alpha) * ground[n]);
  };
  // What lies under a node: backgrounds of its ancestors, or the shapes of a drawing.
  const ground = (node) => {
    const layers = [];
    if (node.closest("svg")) {
      const box = node.getBoundingClientRect();
      const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
      for (const shape of under) {
        if (shape === node || !shape.closest("svg") || /^(svg|g|text|tspan|title)$/.test(shape.tagName)) continue;
        const style = getComputedStyle(shape);
        if (style.fill === "none" || style.fill.startsWith("url")) continue;
        const colour = rgb(style.fill);
        layers.push([...colour.slice(0, 3), (colour[3] ?? 1) * style.fillOpacity * style.opacity]);
      }
    }
    for (let at = node; at; at = at.parentElement) {
      layers.push(rgb(getComputedStyle(at).backgroundColor));
    }
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reverse().reduce((below, top) => over(top, below), dark ? [18, 18, 18] : [255, 255, 255]);
  };
  const lines = (node, from, to) => {
    const range = document.createRange();
    range.setStart(node, from);
    range.setEnd(node, to);
    return new Set([...range.getClientRects()].filter((one) => one.width > .5).map((one) => Math.round(one.top / 4))).size;
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement, text = node.data;
    if (!text.trim() || parent.closest("script, style, title") || !parent.checkVisibility({visibilityProperty: true})) continue;
    const drawn = parent.closest("svg"), code = parent.closest("pre, code");
    if (!drawn && !code) {
      // a number with its sign and unit of per cent; a word where words are alone: names of columns
      for (const one of text.matchAll(/(?<![\p{L}\d][-.]?)[±+-]?\d[\d.,]*(?:\s?%)?/gu)) {
        if (lines(node, one.index, one.index + one[0].length) > 1) say("a number breaks", `${one[0]} in ${text}`);
      }
      for (const one of parent.closest("h1, h2, h3, th, td, dt") ? text.matchAll(/\p{L}+/gu) : []) {
        if (one[0].length < 24 && lines(node, one.index, one.index + one[0].length) > 1) say("a word breaks", `${one[0]} in ${text}`);
      }
    }
    if (drawn) {
      const size = parseFloat(getComputedStyle(parent).fontSize) * parent.getScreenCTM().a;
      if (size < 9.5) say(`letters of ${size.toFixed(1)} px`, text);
    }
    const style = getComputedStyle(parent), below = ground(parent);
    const ink = over(rgb(drawn ? style.fill : style.color), below);
    const [light, dark] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
    const contrast = (light + .05) / (dark + .05);
    // what a box has scrolled away lies on nothing that could be asked for
    const box = parent.getBoundingClientRect(), frame = parent.closest(".scroll")?.getBoundingClientRect();
    if (frame && (box.left + box.right) / 2 > frame.right) continue;
    // strokes around letters (halo) and disabled buttons have their own ground
    if (contrast < 4.5 && !(drawn && style.paintOrder.startsWith("stroke"))) {
      say(`contrast ${contrast.toFixed(1)}`, `${text} (${parent.tagName}.${parent.getAttribute("class") || ""})`);
    }
    const scrolls = (at) => at && (/auto|scroll/.test(getComputedStyle(at).overflowX) ? at : scrolls(at.parentElement));
    const right = Math.max(...[...(() => { const r = document.createRange(); r.selectNodeContents(node); return r.getClientRects(); })()].map((one) => one.right));
    if (right > width + 1 && !scrolls(parent)) say("outside of the window", text);
  }
  for (const node of document.querySelectorAll("body *")) {
    const style = getComputedStyle(node);
    if (node.closest("svg") || !node.checkVisibility() || node.scrollWidth <= node.clientWidth + 1) continue;
    if (/auto|scroll/.test(style.overflowX) && style.backgroundImage === "none") say("scrolls without a hint", node.innerText);
    if (style.overflowX === "hidden" && !node.querySelector("[title]") && !node.title) say("is cut", node.innerText);
  }
  return [...found];
})()
