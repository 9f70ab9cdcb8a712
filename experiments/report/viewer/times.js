"use strict";
// What a step took, by phase: a row each, with a bar as long as its share of the step.
const traceTimes = (() => {
  const milliseconds = (micros) => (micros / 1000).toFixed(micros < 9995 ? 3 : 1);

  function cell(tag, classes, text) {
    const made = document.createElement(tag);
    if (classes) made.className = classes;
    made.textContent = text;
    return made;
  }

  function row(name, taken, whole) {
    const made = document.createElement("tr");
    const share = whole ? taken / whole : 0;
    const bar = cell("span", "trace-part", "");
    bar.style.width = `${100 * share}%`;
    const drawn = cell("td", "trace-bar-of", "");
    drawn.append(bar);
    const head = cell("th", "", name);
    head.scope = "row";
    made.append(head, drawn, cell("td", "number", milliseconds(taken)), cell("td", "number", `${Math.round(100 * share)} %`));
    return made;
  }

  // Put the times of a step into the table; a trace without times has none.
  function show(table, trace, step) {
    table.hidden = !trace.phases.length;
    const taken = trace.micros.map((column) => column[step]);
    const whole = taken.reduce((sum, one) => sum + one, 0);
    table.tBodies[0].replaceChildren(...trace.phases.map((name, i) => row(name, taken[i], whole)));
    table.tFoot.replaceChildren(row("step", whole, whole));
  }

  return { show };
})();
