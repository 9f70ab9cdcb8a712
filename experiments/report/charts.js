"use strict";
// Draws the charts of all sections with the page's colours, and again when these change.
(() => {
  const FONT = 12; // pixels
  const ENTRY = 150; // pixels that an entry of a legend takes
  const LINE = 20; // pixels of a line of a legend
  const PAPER = 320; // pixels of a chart on paper, two side by side
  const COLOURED = /color$|^colorscale$/;

  // A probe and a pixel turn any CSS colour, custom properties in it, into the rgb that plotly reads.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  let known = new Map();

  function rgb(colour) {
    if (!known.has(colour)) {
      probe.style.color = "";
      probe.style.color = colour;
      pixel.clearRect(0, 0, 1, 1);
      pixel.fillStyle = getComputedStyle(probe).color;
      pixel.fillRect(0, 0, 1, 1);
      const [red, green, blue] = pixel.getImageData(0, 0, 1, 1).data;
      known.set(colour, `rgb(${red}, ${green}, ${blue})`);
    }
    return known.get(colour);
  }

  // Returns a copy of what plotly reads, with its colours as numbers.
  function resolved(value, key) {
    if (Array.isArray(value)) return value.map((one) => resolved(one, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, resolved(one, name)]));
    }
    return typeof value === "string" && COLOURED.test(key) && value.includes("var(--") ? rgb(value) : value;
  }

  function axis(own) {
    const lines = { gridcolor: "var(--line)", zerolinecolor: "var(--line)", linecolor: "var(--muted)" };
    return { ...lines, ...own, title: { standoff: 10, ...own?.title } };
  }

  function heightOf(figure, width) {
    const entries = figure.data.filter((trace) => trace.showlegend !== false).length;
    const perLine = Math.max(1, Math.floor((width - 80) / ENTRY));
    return figure.layout.height + (entries > 1 ? LINE * Math.ceil(entries / perLine) : 0);
  }

  const printing = () => document.documentElement.dataset.printing !== undefined;

  function layoutOf(figure, place) {
    const width = printing() ? PAPER : place.clientWidth;
    const height = heightOf(figure, width);
    place.style.height = `${height}px`;
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: "var(--ink)", size: FONT, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 56, r: 12, t: 12, b: 48 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--muted)", activecolor: "var(--ink)" },
      legend: { orientation: "h", traceorder: "normal", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 11 } },
      hoverlabel: { bgcolor: "var(--raised)", bordercolor: "var(--line)", font: { color: "var(--ink)" } },
      dragmode: false,
      ...figure.layout,
      xaxis: axis(figure.layout.xaxis),
      yaxis: axis(figure.layout.yaxis),
      width: printing() ? PAPER : undefined,
      height,
    };
  }

  function draw(place) {
    const figure = figures.get(place.dataset.figures)[Number(place.dataset.number)];
    const config = {
      responsive: true,
      displaylogo: false,
      modeBarButtons: [["toImage"]],
      toImageButtonOptions: { format: "svg", filename: `${place.dataset.figures}-${place.dataset.number}` },
    };
    Plotly.react(place, resolved(figure.data, ""), resolved(layoutOf(figure, place), ""), config);
    place.dataset.drawn = "yes";
    // Drawn anew, a chart without a width of its own keeps that of the paper.
    if (!printing() && Math.abs(place._fullLayout.width - place.clientWidth) > 1) Plotly.Plots.resize(place);
  }

  const places = [...document.querySelectorAll(".chart")];
  const figures = new Map();
  for (const { dataset } of places) {
    if (!figures.has(dataset.figures)) {
      figures.set(dataset.figures, JSON.parse(document.getElementById(`data-${dataset.figures}`).textContent).figures);
    }
  }

  // The library lies packed in the page. A script in the page may run it; nothing is loaded for that.
  async function unpack() {
    const bytes = Uint8Array.from(atob(PACKED_PLOTLY), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  // Charts are drawn as they come near; paper has them all.
  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) {
          near.unobserve(target);
          draw(target);
        }
      }
    },
    { rootMargin: "800px" },
  );
  unpack().then(
    () => {
      document.documentElement.dataset.charts = "ready";
      for (const place of places) near.observe(place);
    },
    (error) => {
      for (const place of places) {
        place.style.height = "";
        place.textContent = `No chart, but the numbers below: this browser cannot unpack the charting library (${error.message}).`;
      }
    },
  );
  window.addEventListener("themechange", () => {
    known = new Map();
    if (!document.documentElement.dataset.charts) return;
    for (const place of places) if (printing() || place.dataset.drawn) draw(place);
  });
})();
