/* The live quality curve and the figures above it, updated by server-sent events once a second. */
"use strict";

(() => {
  const box = document.querySelector("#curve");
  const live = document.querySelector("#live");
  const HEIGHT = 290;
  const SPAN = 5000; // milliseconds over which rows a second are counted
  const LATE = 4000; // without an event for so long, the server is away

  let points = [];
  let counts = []; // time and number of items
  let tableVersion = null; // that the table shows
  let lastEvent = Date.now();

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
      hooks: { draw: [alarms], setCursor: [showPoint] },
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
    },
    columns(),
    box,
  );

  /* The values under the pointer, or the last ones. */
  function showPoint(plot) {
    const at = points[plot.cursor.idx ?? points.length - 1];
    for (const place of document.querySelectorAll("#legend [data-at]")) {
      const value = at?.[place.dataset.at];
      place.textContent = value === undefined ? "–" : place.dataset.at === "version" ? value : value.toFixed(3);
    }
  }

  function range(low, high) {
    if (low == null) return [0, 1];
    const margin = Math.max(0.02, (high - low) * 0.15);
    return [Math.max(0, low - margin), Math.min(1, high + margin)];
  }

  function draw() {
    chart.setData(columns());
    showPoint(chart);
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

  function setStatus(kind, text) {
    if (live.className === `live ${kind}`) return;
    live.className = `live ${kind}`;
    live.lastElementChild.textContent = text;
  }

  /* The table is not replaced while one of its forms is open. */
  function refreshTable(version) {
    const place = document.querySelector("#versions");
    if (tableVersion === null) tableVersion = version;
    if (tableVersion === version || place.querySelector("details[open]")) return;
    tableVersion = version;
    htmx.trigger(place, "refresh");
  }

  // ---- events ----

  let source = null;

  function connect() {
    source?.close();
    source = new EventSource(box.dataset.events);
    source.addEventListener("message", (event) => update(JSON.parse(event.data)));
    source.addEventListener("failure", (event) => {
      lastEvent = Date.now();
      setStatus("off", JSON.parse(event.data).message);
    });
  }

  function update(progress) {
    lastEvent = Date.now();
    setStatus("on", "live");
    if (progress.restart) points = [];
    const seen = points.length ? points[points.length - 1].version : -1;
    const added = progress.points.filter((p) => p.version > seen);
    points = points.concat(added);
    if (added.length || progress.restart) draw();
    show("items", progress.items.toLocaleString("en"));
    show("rate", rate(progress.items));
    show("pending", progress.pending.toLocaleString("en"));
    show("version", String(progress.version));
    show("alarms", String(progress.alarms));
    document.querySelector(".figures .alarm").classList.toggle("none", !progress.alarms);
    if (progress.quality) {
      const { map, hamming } = progress.quality;
      show("map", map.toFixed(3));
      if (hamming !== undefined) show("gain", (map < hamming ? "-" : "+") + Math.abs(map - hamming).toFixed(3));
    }
    refreshTable(progress.version);
  }

  connect();
  setInterval(() => {
    if (Date.now() - lastEvent <= LATE) return;
    setStatus("off", "no events from the server");
    if (source.readyState === EventSource.CLOSED) connect(); // refused, so the browser does not reconnect by itself
  }, 2000);
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => event.persisted && connect());
})();
