"use strict";
// Steps through the traces of the page, each by itself: keys, buttons, the slider, the search, links to a step.
// Texts of models become text nodes and attributes, never markup.
(() => {
  const WINDOW = 500; // emitted or prompt tokens before the end of the step that are shown
  const BARS = 240; // of the strip over the slider, at most
  const LINK_AFTER = 250; // ms without a step until the address follows: browsers take few changes a second
  const { draw, letter, kind, MARKS } = traceTree;

  function make(tag, classes = "", text = "") {
    const made = document.createElement(tag);
    if (classes) made.className = classes;
    if (text !== "") made.textContent = text;
    return made;
  }

  class TraceViewer {
    constructor(frame) {
      this.name = frame.dataset.trace;
      this.view = frame.querySelector(".trace-view");
      const raw = JSON.parse(document.getElementById(`data-${this.name}`).textContent);
      this.trace = traceData.unpacked(raw);
      this.words = raw.texts.map((_, place) => traceData.word(this.trace, place));
      this.found = traceData.search(this.trace, this.words, "");
      this.part = (name) => this.view.querySelector(`.trace-${name}`);
      this.actions = {
        first: () => this.go(0),
        last: () => this.go(this.trace.steps - 1),
        back: () => this.go(this.step - 1),
        on: () => this.go(this.step + 1),
        back10: () => this.go(this.step - 10),
        on10: () => this.go(this.step + 10),
        promptBack: () => this.turn(-1),
        promptOn: () => this.turn(1),
        nodeBack: () => this.select(this.node < 0 ? this.rows - 1 : this.node - 1),
        nodeOn: () => this.select(this.node + 1),
        hitBack: () => this.jump(-1),
        hitOn: () => this.jump(1),
        search: () => this.part("search").focus(),
        help: () => this.part("help").showModal(),
        close: () => this.part("help").close(),
      };
      this.view.hidden = false;
      this.view.setAttribute("aria-label", `Trace of ${raw.arm}; ? lists its keys`);
      this.prepare();
      this.listen();
      this.show(0);
    }

    prepare() {
      const { trace } = this;
      this.part("count").textContent = trace.steps.toLocaleString("en");
      for (const name of ["number", "slider"]) this.part(name).max = trace.steps;
      trace.prompts.forEach((prompt, i) => {
        const option = make("option", "", `${i + 1}: ${prompt.name}`);
        option.disabled = !prompt.steps;
        this.part("prompt").append(option);
      });
      this.part("prompts").hidden = trace.prompts.length < 2;
      this.legend();
      this.strip();
    }

    // What the colours, lines and marks mean; of the sources those that drafted here.
    legend() {
      const origins = this.trace.sources.map((name, i) => [`origin-${i % 6}`, `${letter(i)} ${name}`]);
      origins.push(["origin-recovered", "recovered"], ["origin-bonus", "bonus"], ["origin-prompt", "prompt"]);
      const texts = make("p", "", "Tokens from: ");
      for (const [origin, name] of origins) texts.append(make("span", `origin ${origin}`, name), " ");
      const used = new Set(this.trace.decision);
      const marks = this.trace.decisions.filter((_, i) => used.has(i)).map((name) => `${MARKS[name]} ${name}`);
      this.part("legend").append(texts, make("p", "", `Nodes: ${marks.join("   ")}`));
    }

    // Emitted tokens a step along the run, over the slider.
    strip() {
      const { steps, outFirst } = this.trace;
      const bars = Math.min(BARS, steps);
      const means = Array.from({ length: bars }, (_, i) => {
        const [from, to] = [i, i + 1].map((end) => Math.floor((end * steps) / bars));
        return (outFirst[to] - outFirst[from]) / (to - from);
      });
      const most = Math.max(1, ...means);
      const d = means.map((mean, i) => `M${i} 1V${1 - mean / most}h1V1Z`).join("");
      const svg = this.part("strip");
      const path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("d", d);
      svg.setAttribute("viewBox", `0 0 ${bars} 1`);
      svg.append(path);
    }

    listen() {
      const { view } = this;
      view.addEventListener("click", (event) => this.clicked(event));
      view.addEventListener("keydown", (event) => this.pressed(event));
      window.addEventListener("resize", () => this.follow());
      this.part("slider").addEventListener("input", (event) => this.go(event.target.value - 1));
      this.part("number").addEventListener("change", (event) => this.go(event.target.value - 1));
      this.part("prompt").addEventListener("change", (event) => this.go(this.trace.promptFirst[event.target.selectedIndex]));
      this.part("search").addEventListener("input", (event) => this.look(event.target.value));
      this.part("strip").addEventListener("click", (event) => {
        const place = event.currentTarget.getBoundingClientRect();
        this.go(Math.floor(((event.clientX - place.left) / place.width) * this.trace.steps));
      });
    }

    clicked(event) {
      const at = event.target.closest("[data-do], [data-step], [data-node]");
      if (!at) return;
      if (at.dataset.do) this.actions[at.dataset.do]();
      else if (at.dataset.step) this.go(Number(at.dataset.step));
      else this.select(Number(at.dataset.node));
    }

    pressed(event) {
      if (event.ctrlKey || event.altKey || event.metaKey || this.part("help").open) return;
      if (event.target.matches("select, input:not([type=range])")) return this.typed(event);
      const keys = {
        ArrowLeft: "back", ArrowRight: "on", PageUp: "back10", PageDown: "on10", Home: "first", End: "last",
        ArrowUp: "nodeBack", k: "nodeBack", ArrowDown: "nodeOn", j: "nodeOn", "[": "promptBack", "]": "promptOn",
        "/": "search", n: "hitOn", N: "hitBack", "?": "help",
      };
      if (!(event.key in keys)) return;
      event.preventDefault();
      this.actions[keys[event.key]]();
    }

    // Keys in a field are its own, but for those that leave it and that go from match to match.
    typed(event) {
      const isSearch = event.target === this.part("search");
      if (event.key === "Escape") this.view.focus({ preventScroll: true });
      else if (event.key === "Enter" && isSearch) this.jump(event.shiftKey ? -1 : 1);
    }

    // Go to a step that the reader asked for: the nearest that there is.
    go(step) {
      if (!this.trace.steps) return;
      this.show(Math.min(Math.max(Math.floor(Number(step)) || 0, 0), this.trace.steps - 1));
      clearTimeout(this.linking);
      this.linking = setTimeout(() => history.replaceState(null, "", `#${this.link}/step=${this.step + 1}`), LINK_AFTER);
    }

    // Go to the first step of another prompt that has one.
    turn(by) {
      const { prompts, promptFirst } = this.trace;
      let prompt = traceData.promptOf(this.trace, this.step) + by;
      while (prompts[prompt] && !prompts[prompt].steps) prompt += by;
      if (prompts[prompt]) this.go(promptFirst[prompt]);
    }

    look(query) {
      this.found = traceData.search(this.trace, this.words, query);
      this.show(this.step);
    }

    // Go to the next step with a match, around the end.
    jump(by) {
      const { steps } = this.found;
      if (!steps.length) return;
      const beyond = by > 0 ? steps.find((step) => step > this.step) : steps.findLast((step) => step < this.step);
      this.go(beyond ?? (by > 0 ? steps[0] : steps[steps.length - 1]));
    }

    get rows() {
      return this.trace.size[this.step];
    }

    show(step) {
      this.step = step;
      this.node = -1;
      if (!this.trace.steps) {
        this.part("now").textContent = "No step was taken.";
        return;
      }
      this.prompt = traceData.promptOf(this.trace, step);
      this.nodes = Array.from({ length: this.rows }, (_, i) => this.nodeOf(this.trace.first[step] + i));
      this.showPlace();
      this.showText();
      this.showTree();
      this.showTable();
      traceTimes.show(this.part("times"), this.trace, step);
    }

    // What the tree and the table say of a node.
    nodeOf(row) {
      const { trace, words } = this;
      const [decision, source, word] = [trace.decisions[trace.decision[row]], trace.source[row], words[trace.token[row]]];
      const [p, q, sure] = ["p", "q", "confidence"].map((name) => trace[name][row]);
      const [say, short] = [traceData.number, traceData.short];
      const from = source < 0 ? "target" : trace.sources[source];
      const origin = source < 0 ? `origin-${decision}` : `origin-${source % 6}`;
      const lines = [source < 0 ? `p ${short(p)}` : `p ${short(p)}  q ${short(q)}`];
      if (sure !== -1) lines.push(`conf ${short(sure)}`);
      return {
        parent: trace.parent[row], text: word.own, decision, origin, mark: MARKS[decision], letter: letter(source), lines,
        classes: `${kind(decision)} ${origin}${this.found.holds[trace.token[row]] ? " hit" : ""}`,
        title: `${word.own}: ${from}, p ${say(p)}, q ${say(q)}, confidence ${say(sure)}, ${decision}`,
        cells: [word.own, trace.ids[trace.token[row]], null, from, say(p), say(q), say(sure), `${MARKS[decision]} ${decision}`],
      };
    }

    showPlace() {
      const { trace, step, prompt, nodes } = this;
      const [own, given] = [step - trace.promptFirst[prompt] + 1, trace.prompts[prompt]];
      const emitted = trace.outFirst[step + 1] - trace.outFirst[trace.promptFirst[prompt]];
      const count = (decisions) => nodes.filter((node) => decisions.includes(node.decision)).length;
      const [accepted, scouts] = [count(["accepted"]), count(["scout"])];
      const drafted = nodes.length - count(["scout", "recovered", "bonus"]);
      const last = nodes[nodes.length - 1];
      const end = last.letter ? "and the text ends" : `then “${last.text}” (${last.decision})`;
      this.part("now").textContent =
        `Step ${step + 1} of ${trace.steps}: ${drafted} drafted, ${accepted} accepted, ${scouts ? `${scouts} scouts, ` : ""}${end}.`;
      this.part("sofar").textContent =
        `${given.name}: step ${own} of ${given.steps}, ${(emitted / own).toFixed(2)} tokens a step so far.`;
      this.part("picked").textContent = "Arrows, j and k, or a click pick a node.";
      this.part("number").value = this.part("slider").value = step + 1;
      this.part("prompt").selectedIndex = prompt;
      const { steps } = this.found;
      const at = steps.indexOf(step) + 1;
      this.part("hits").textContent = this.part("search").value ? `${at ? `${at} of ` : ""}${steps.length} steps` : "";
    }

    showText() {
      const { trace, step, prompt } = this;
      const [begin, now, end] = [trace.promptFirst[prompt], step, step + 1].map((one) => trace.outFirst[one]);
      const box = this.part("text");
      const from = Math.max(begin, end - WINDOW);
      const given = trace.prompts[prompt].tokens;
      const kept = given.slice(Math.max(0, given.length - (WINDOW - (end - from))));
      const hidden = given.length - kept.length + (from - begin);
      const before = make("span", "origin-prompt", kept.map((place) => this.words[place].inText).join(""));
      box.replaceChildren(make("span", "trace-before", hidden ? `… ${hidden} tokens before …\n` : ""), before);
      for (let out = from; out < now; out++) box.append(this.piece(out));
      const current = make("span", "trace-current");
      for (let out = now; out < end; out++) current.append(this.piece(out));
      box.append(current);
      this.follow();
    }

    // The end of the text is what one looks at.
    follow() {
      this.part("text").scrollTop = this.part("text").scrollHeight;
    }

    // An emitted token in the text.
    piece(out) {
      const { trace } = this;
      const row = trace.out[out];
      const [source, decision] = [trace.source[row], trace.decisions[trace.decision[row]]];
      const origin = source < 0 ? decision : source % 6;
      const text = this.words[trace.token[row]].inText;
      const span = make("span", `origin origin-${origin}${this.found.marked[out] ? " hit" : ""}`, text);
      span.dataset.step = traceData.placeOf(trace.outFirst, out);
      return span;
    }

    // The token after which the step drafts: committed, not yet scored.
    pending() {
      const { trace, step, prompt, words } = this;
      const given = trace.prompts[prompt].tokens;
      const isFirst = step === trace.promptFirst[prompt];
      const place = isFirst ? given[given.length - 1] : trace.token[trace.out[trace.outFirst[step] - 1]];
      const text = words[place].own;
      return { text, decision: "", classes: "pending", mark: "", letter: "", lines: ["pending"], title: `${text}: pending` };
    }

    showTree() {
      const box = this.part("tree");
      box.replaceChildren(draw(this.pending(), this.nodes));
      const last = box.querySelector("svg").lastChild.getBoundingClientRect();
      box.scrollTo(0, last.bottom - box.getBoundingClientRect().bottom + box.scrollTop + 8); // the last node: the verdict's
    }

    showTable() {
      const body = this.part("table").tBodies[0];
      const name = (i) => (i < 0 ? "pending" : String(i + 1));
      body.replaceChildren(
        ...this.nodes.map((node, i) => {
          const row = make("tr", node.classes);
          row.dataset.node = i;
          row.append(make("th", "", name(i)));
          row.firstChild.scope = "row";
          node.cells.forEach((cell, at) => {
            const isNumber = [1, 4, 5, 6].includes(at);
            row.append(make("td", isNumber ? "number" : "", cell === null ? name(node.parent) : String(cell)));
          });
          row.children[1].classList.add("trace-token");
          return row;
        }),
      );
    }

    // Mark a node in tree and table, and bring it into view there without moving the page.
    select(node) {
      if (!this.trace.steps) return;
      this.node = Math.min(Math.max(node, 0), this.rows - 1);
      for (const one of this.view.querySelectorAll("[data-node]")) {
        const is = Number(one.dataset.node) === this.node;
        one.classList.toggle("selected", is);
        if (is && one.tagName === "TR") one.setAttribute("aria-current", "true");
        else one.removeAttribute("aria-current");
      }
      const box = this.part("tree");
      const [own, around] = [box.querySelector(".selected"), box].map((one) => one.getBoundingClientRect());
      box.scrollBy(own.left - around.left - (around.width - own.width) / 2, own.top - around.top - (around.height - own.height) / 2);
      this.part("picked").textContent = `Node ${this.node + 1} of ${this.rows}: ${this.nodes[this.node].title}`;
    }
  }

  const viewers = [...document.querySelectorAll("[data-trace]")].map((frame) => new TraceViewer(frame));
  for (const viewer of viewers) {
    const { link } = viewer.trace;
    viewer.link = viewers.filter((other) => other.trace.link === link).length > 1 ? viewer.name : link;
  }

  // "#trace-ARM/step=17"; of several runs on a page the address has the whole name.
  function open() {
    const found = /^#([\w-]+)\/step=(\d+)$/.exec(location.hash);
    const viewer = found && (viewers.find((one) => one.name === found[1]) ?? viewers.find((one) => one.trace.link === found[1]));
    if (!viewer) return;
    viewer.go(Number(found[2]) - 1);
    viewer.view.scrollIntoView();
    viewer.view.focus({ preventScroll: true });
  }

  window.addEventListener("hashchange", open);
  open();
})();
