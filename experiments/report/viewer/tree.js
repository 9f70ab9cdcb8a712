"use strict";
// The draft tree of a step as SVG: the pending token on the left, depth to the right, siblings from above in the order
// in which they are tried, the token that the verdict drew where the walk stopped.
const traceTree = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, ACROSS, BETWEEN, EDGE] = [120, 26, 9, 8];
  const [LOW, HIGH] = [44, 58]; // of a node with two lines, and with three
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const MARKS = {
    accepted: "✓",
    "cut off": "✂",
    rejected: "✗",
    "not reached": "○",
    scout: "◇",
    recovered: "▲",
    bonus: "★",
  };

  const letter = (source) => (source < 0 ? "" : LETTERS[source % LETTERS.length]);
  const kind = (decision) => decision.replace(" ", "-");

  function element(tag, attributes, text = "") {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== "") made.textContent = text;
    return made;
  }

  // Column and lane of each node; a node stands level with its first child, so that a path of first children is straight.
  function layout(parents) {
    const children = parents.map(() => []);
    const tops = [];
    parents.forEach((parent, i) => (parent < 0 ? tops : children[parent]).push(i));
    const [depth, lane] = [[], []];
    let lanes = 0;
    const place = (i, at) => {
      depth[i] = at;
      children[i].forEach((child) => place(child, at + 1));
      lane[i] = children[i].length ? lane[children[i][0]] : lanes++;
    };
    tops.forEach((i) => place(i, 1));
    return { depth, lane, lanes, depths: Math.max(...depth) };
  }

  // So many columns of a monospaced text fit; wide characters take two.
  function fitting(text, columns) {
    let [taken, kept] = [0, ""];
    for (const character of text) {
      taken += character.codePointAt(0) < 0x2e80 ? 1 : 2;
      if (taken > columns) return `${kept}…`;
      kept += character;
    }
    return kept;
  }

  const left = (depth) => EDGE + depth * (WIDTH + ACROSS);
  const top = (lane, height) => EDGE + lane * (height + BETWEEN);

  function shape(decision, h) {
    const [w, cut] = [WIDTH, 11];
    if (decision === "recovered") {
      return element("path", { class: "box", d: `M${cut} 0H${w - cut}L${w} ${h / 2}L${w - cut} ${h}H${cut}L0 ${h / 2}Z` });
    }
    const round = { bonus: 16, scout: 22 }[decision] ?? 5;
    return element("rect", { class: "box", width: w, height: h, rx: round });
  }

  function box(x, y, height, of) {
    const group = element("g", { class: `node ${of.classes}`, transform: `translate(${x} ${y})` });
    group.append(shape(of.decision, height), element("text", { class: "token", x: 26, y: 18 }, fitting(of.text, 9)));
    group.append(element("text", { class: "mark", x: 10, y: 18 }, of.mark));
    of.lines.forEach((line, i) => group.append(element("text", { class: "figure", x: 11, y: 34 + 14 * i }, line)));
    if (of.letter) group.append(element("text", { class: "letter", x: WIDTH - 7, y: height - 10 }, of.letter));
    group.append(element("title", {}, of.title));
    return group;
  }

  // Return the picture of nodes {parent, text, decision, classes, mark, letter, lines, title} behind a pending token.
  function draw(pending, nodes) {
    const at = layout(nodes.map((node) => node.parent));
    const tall = nodes.some((node) => node.lines.length > 1) ? HIGH : LOW;
    const [width, height] = [left(at.depths) + WIDTH + EDGE, top(at.lanes, tall) + EDGE - BETWEEN];
    const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
    const drafted = nodes.filter((node) => node.letter).length;
    const drawn = drafted < nodes.length ? " and the token that the target drew" : "";
    svg.setAttribute("aria-label", `Draft tree of ${drafted} nodes${drawn}; the table below says the same`);
    nodes.forEach((node, i) => {
      const [x, y] = [left(at.depth[i]), top(at.lane[i], tall) + tall / 2];
      const [from, above] = [x - ACROSS, top(node.parent < 0 ? 0 : at.lane[node.parent], tall) + tall / 2];
      const d = `M${from} ${above}C${from + ACROSS / 2} ${above} ${x - ACROSS / 2} ${y} ${x} ${y}`;
      svg.append(element("path", { class: `edge ${kind(node.decision)}`, d }));
    });
    svg.append(box(left(0), top(0, tall), tall, pending));
    nodes.forEach((node, i) => {
      const group = box(left(at.depth[i]), top(at.lane[i], tall), tall, node);
      group.dataset.node = i;
      svg.append(group);
    });
    return svg;
  }

  return { draw, letter, kind, MARKS };
})();
