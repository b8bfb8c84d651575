/* The live curve of quality, and the figures above it: what the server tells once a second. */
"use strict";

(() => {
  const box = document.querySelector("#curve");
  const live = document.querySelector("#live");
  const HEIGHT = 290;
  const SPAN = 5000; // milliseconds over which rows a second are counted
  const LATE = 4000; // without news for so long, the server is gone

  let points = [];
  let counts = []; // when, and how many items
  let drawn = null; // the version that the table shows
  let heard = Date.now();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---- the chart ----

  function columns() {
    return [points.map((p) => p.version), points.map((p) => p.map), points.map((p) => p.hamming)];
  }

  function alarms(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--alarm");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const point of points.filter((p) => p.drift)) {
      const x = Math.round(plot.valToPos(point.version, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  const axis = (label, size) => ({
    label,
    size,
    labelSize: 20,
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
  });

  const line = (label, name, width) => ({
    label,
    width,
    stroke: () => colour(name),
    points: { show: () => points.length < 60, size: 5, fill: () => colour(name) },
  });

  const chart = new uPlot(
    {
      width: box.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false }, y: { range: (_, low, high) => range(low, high) } },
      axes: [{ ...axis("version", 30), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, axis("mAP", 42)],
      series: [{ label: "version" }, line("learnt", "--learnt", 2.5), line("Hamming", "--hamming", 1.5)],
      hooks: { draw: [alarms], setCursor: [point] },
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
    },
    columns(),
    box,
  );

  /* The values under the pointer, or the last ones. */
  function point(plot) {
    const at = points[plot.cursor.idx ?? points.length - 1];
    for (const place of document.querySelectorAll("#legend [data-at]")) {
      const value = at?.[place.dataset.at];
      place.textContent = value === undefined ? "–" : place.dataset.at === "version" ? value : value.toFixed(3);
    }
  }

  function range(low, high) {
    if (low == null) return [0, 1];
    const room = Math.max(0.02, (high - low) * 0.15);
    return [Math.max(0, low - room), Math.min(1, high + room)];
  }

  function draw() {
    chart.setData(columns());
    point(chart);
    box.querySelector(".empty").hidden = points.length > 0;
    const last = points[points.length - 1];
    box.dataset.points = points.length;
    if (last) box.setAttribute("aria-label", `Quality over ${points.length} chunks: learnt ${last.map.toFixed(3)}, Hamming ${last.hamming.toFixed(3)} at version ${last.version}`);
  }

  new ResizeObserver(() => chart.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false, true));

  // ---- the figures ----

  function show(name, value) {
    const figure = document.querySelector(`[data-figure=${name}]`);
    if (figure.textContent !== value) figure.textContent = value;
  }

  function rate(items) {
    const now = Date.now();
    counts = [...counts.filter(([when]) => now - when <= SPAN), [now, items]];
    const [since, first] = counts[0];
    const rows = now > since ? Math.max(0, items - first) / ((now - since) / 1000) : 0;
    return Math.round(rows).toLocaleString("en");
  }

  function state(kind, words) {
    if (live.className === `live ${kind}`) return;
    live.className = `live ${kind}`;
    live.lastElementChild.textContent = words;
  }

  /* The table waits while somebody is about to do something in it. */
  function table(version) {
    const place = document.querySelector("#versions");
    if (drawn === null) drawn = version;
    if (drawn === version || place.querySelector("details[open]")) return;
    drawn = version;
    htmx.trigger(place, "refresh");
  }

  // ---- news ----

  let source = null;

  function listen() {
    source?.close();
    source = new EventSource(box.dataset.events);
    source.addEventListener("message", (event) => tell(JSON.parse(event.data)));
    source.addEventListener("wrong", (event) => {
      heard = Date.now();
      state("off", JSON.parse(event.data).message);
    });
  }

  function tell(news) {
    heard = Date.now();
    state("on", "live");
    if (news.fresh) points = [];
    const seen = points.length ? points[points.length - 1].version : -1;
    const added = news.points.filter((p) => p.version > seen);
    points = points.concat(added);
    if (added.length || news.fresh) draw();
    show("items", news.items.toLocaleString("en"));
    show("rate", rate(news.items));
    show("pending", news.pending.toLocaleString("en"));
    show("version", String(news.version));
    show("alarms", String(news.alarms));
    document.querySelector(".figures .alarm").classList.toggle("none", !news.alarms);
    if (news.quality) {
      const { map, hamming } = news.quality;
      show("map", map.toFixed(3));
      if (hamming !== undefined) show("gain", (map < hamming ? "-" : "+") + Math.abs(map - hamming).toFixed(3));
    }
    table(news.version);
  }

  listen();
  setInterval(() => {
    if (Date.now() - heard <= LATE) return;
    state("off", "no news from the server");
    if (source.readyState === EventSource.CLOSED) listen(); // it was refused, and would not ask again by itself
  }, 2000);
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => event.persisted && listen());
})();
