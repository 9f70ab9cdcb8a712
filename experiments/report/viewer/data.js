"use strict";
// A trace as the page holds it: columns with an entry for each node, of which steps have runs. Here it is unpacked, its
// texts are made legible, and it is searched. Nothing in this file touches the document.
const traceData = (() => {
  const EMITTED = ["accepted", "recovered", "bonus"];
  const SCALE = 10000;
  const SIGNS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };

  function column(values, rows) {
    return typeof values === "number" ? new Int32Array(rows).fill(values) : Int32Array.from(values);
  }

  // The first of each run, and the end of the last.
  function starts(sizes) {
    const found = new Int32Array(sizes.length + 1);
    sizes.forEach((size, i) => (found[i + 1] = found[i] + size));
    return found;
  }

  function unpacked(raw) {
    const trace = { ...raw };
    for (const name of ["token", "parent", "source", "decision", "p", "q", "confidence"]) {
      trace[name] = column(raw[name], raw.rows);
    }
    trace.first = starts(raw.size); // row of each step
    trace.steps = raw.size.length;
    trace.promptFirst = starts(raw.prompts.map((prompt) => prompt.steps)); // step of each prompt
    const emits = raw.decisions.map((name) => EMITTED.includes(name));
    trace.out = []; // row of each emitted token
    trace.outFirst = new Int32Array(trace.steps + 1); // emitted before each step
    for (let step = 0; step < trace.steps; step++) {
      for (let row = trace.first[step]; row < trace.first[step + 1]; row++) {
        if (emits[trace.decision[row]]) trace.out.push(row);
      }
      trace.outFirst[step + 1] = trace.out.length;
    }
    return trace;
  }

  // The last place whose start is not beyond a number.
  function placeOf(starts, number) {
    let [low, high] = [0, starts.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= number) low = middle;
      else high = middle;
    }
    return low;
  }

  // The prompt that a step belongs to; those without a step share their start with the next one.
  const promptOf = (trace, step) => placeOf(trace.promptFirst, step);
  const stepOfRow = (trace, row) => placeOf(trace.first, row);

  const hex = (number, width) => number.toString(16).toUpperCase().padStart(width, "0");

  function sign(character) {
    const code = character.codePointAt(0);
    if (character in SIGNS) return SIGNS[character];
    return code < 32 ? String.fromCodePoint(0x2400 + code) : `⟨${hex(code, 4)}⟩`;
  }

  // Whitespace, controls and what else cannot be seen become signs: a token by itself.
  function visible(text) {
    if (text === "") return "∅";
    return text.replace(/[\p{Z}\p{C}]/gu, sign);
  }

  // The same in running text, where lines break and spaces inside of a token stand.
  function flowing(text) {
    const blank = text.trim() === "";
    const shown = (character) => (character === " " && !blank ? " " : sign(character));
    const breaks = { "\n": "\n", "\t": "\t" };
    return text.replace(/[\p{Z}\p{C}]/gu, (character) => shown(character) + (breaks[character] ?? ""));
  }

  // What a token says: its text, the bytes of a part of a character, or its id where nothing else is known.
  function word(trace, place) {
    const text = trace.texts[place];
    if (typeof text === "string") return { plain: text, own: visible(text), inText: flowing(text) };
    const shown = text === null ? `#${trace.ids[place]} ` : `⟨${text.map((byte) => hex(byte, 2)).join(" ")}⟩`;
    return { plain: shown, own: shown.trim(), inText: shown };
  }

  function number(value) {
    if (value === -1) return "–";
    if (value === -2) return "<.0001";
    return value === -3 ? ">.9999" : (value / SCALE).toFixed(4);
  }

  // In fewer places: three digits, or four where three would say nothing; 0 and 1 as they are.
  function short(value) {
    if (value === 0 || value === SCALE) return String(value / SCALE);
    const isSmall = value < 10;
    return (isSmall ? number(value) : (value / SCALE).toFixed(3)).replace(/^0/, "");
  }

  // The output of a prompt in lower case, and where each of its tokens begins there.
  function outputOf(trace, words, prompt) {
    const [from, to] = [0, 1].map((i) => trace.outFirst[trace.promptFirst[prompt + i]]);
    const texts = trace.out.slice(from, to).map((row) => words[trace.token[row]].plain.toLowerCase());
    return { from, text: texts.join(""), starts: starts(texts.map((text) => text.length)) };
  }

  // Steps with a match: a token that holds the text, drafted or emitted, or a run of emitted tokens that does.
  function search(trace, words, query) {
    const wanted = query.toLowerCase();
    const holds = words.map((one) => wanted !== "" && one.plain.toLowerCase().includes(wanted));
    const hit = new Uint8Array(trace.steps);
    const marked = new Uint8Array(trace.out.length);
    if (wanted === "") return { steps: [], holds, marked };
    for (let step = 0; step < trace.steps; step++) {
      for (let row = trace.first[step]; row < trace.first[step + 1]; row++) {
        if (holds[trace.token[row]]) hit[step] = 1;
      }
    }
    for (let prompt = 0; prompt < trace.prompts.length; prompt++) {
      const output = outputOf(trace, words, prompt);
      for (let at = output.text.indexOf(wanted); at >= 0; at = output.text.indexOf(wanted, at + 1)) {
        const [begin, end] = [at, at + wanted.length - 1].map((i) => output.from + placeOf(output.starts, i));
        marked.fill(1, begin, end + 1);
        hit[stepOfRow(trace, trace.out[begin])] = 1;
      }
    }
    const steps = [];
    hit.forEach((found, step) => found && steps.push(step));
    return { steps, holds, marked };
  }

  return { unpacked, placeOf, promptOf, stepOfRow, word, number, short, search };
})();
