/* Draws tens of thousands of points into the pixels of a canvas, and finds the points near a place.
   Paths of a canvas take too long for as many; so each point is a small disc that is written pixel by pixel. */
"use strict";

const pointMap = (() => {
  const CELLS = 128; // of the grid that points are looked up in, across and down

  /* Read what the server sends: the length of a header, the header, coordinates, labels, flags. */
  function parsePoints(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const n = about.points, start = 4 + size;
    const places = new Float32Array(buffer, start, 2 * n);
    const labels = new Uint8Array(buffer, start + 8 * n, n);
    const predicted = new Uint8Array(buffer, start + 9 * n, n);
    return { ...about, n, places, labels, predicted, order: shuffled(n), ...boundsOf(places), grid: null };
  }

  /* An order of the points that is always the same, so that no label always lies on top. */
  function shuffled(n) {
    const order = Uint32Array.from({ length: n }, (_, i) => i);
    let seed = 12345;
    for (let i = n - 1; i > 0; i--) {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      const j = Math.floor((seed / 4294967296) * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  function boundsOf(places) {
    let [left, bottom, right, top] = [Infinity, Infinity, -Infinity, -Infinity];
    for (let i = 0; i < places.length; i += 2) {
      left = Math.min(left, places[i]);
      right = Math.max(right, places[i]);
      bottom = Math.min(bottom, places[i + 1]);
      top = Math.max(top, places[i + 1]);
    }
    if (left > right) [left, bottom, right, top] = [-1, -1, 1, 1];
    return { left, bottom, width: Math.max(right - left, 1e-6), height: Math.max(top - bottom, 1e-6) };
  }

  /* The pixels of a disc, as offsets in an image of this width: those inside, and those on the edge with their share. */
  function discOf(radius, width) {
    const inside = [], edge = [], shares = [], reach = Math.ceil(radius + 0.5);
    for (let y = -reach; y <= reach; y++) {
      for (let x = -reach; x <= reach; x++) {
        const share = Math.min(1, radius + 0.5 - Math.hypot(x, y));
        if (share > 0.95) inside.push(y * width + x);
        else if (share > 0.05) {
          edge.push(y * width + x);
          shares.push(Math.round(256 * share));
        }
      }
    }
    return { inside: Int32Array.from(inside), edge: Int32Array.from(edge), shares: Int32Array.from(shares), reach };
  }

  /* Draw all points that are in view, those of `last` on top; return how many. Colours are 0xAABBGGRR. */
  function drawPoints(pixels, width, height, points, view, radius, colours, ground, last) {
    const { places, order } = points, disc = discOf(radius, width), { inside, edge, shares, reach } = disc;
    const { scale } = view, x0 = width / 2 - view.x * scale, y0 = height / 2 + view.y * scale;
    const [right, bottom] = [width - 1 - reach, height - 1 - reach];
    let drawn = 0;
    pixels.fill(ground);
    for (let pass = 0; pass < (last === null ? 1 : 2); pass++) {
      for (let k = 0; k < order.length; k++) {
        const i = order[k];
        if (last !== null && (points.labels[i] === last) !== (pass === 1)) continue;
        const x = Math.round(places[2 * i] * scale + x0), y = Math.round(y0 - places[2 * i + 1] * scale);
        if (x < reach || y < reach || x > right || y > bottom) continue;
        const colour = colours[i], at = y * width + x;
        const blueRed = colour & 0xff00ff, green = colour & 0x00ff00;
        for (let p = 0; p < inside.length; p++) pixels[at + inside[p]] = colour;
        for (let p = 0; p < edge.length; p++) {
          const below = pixels[at + edge[p]], share = shares[p];
          const oldBlueRed = below & 0xff00ff, oldGreen = below & 0x00ff00;
          const newBlueRed = (oldBlueRed + (Math.imul(blueRed - oldBlueRed, share) >>> 8)) & 0xff00ff;
          const newGreen = (oldGreen + (Math.imul(green - oldGreen, share) >> 8)) & 0x00ff00;
          pixels[at + edge[p]] = 0xff000000 | newBlueRed | newGreen;
        }
        drawn++;
      }
    }
    return drawn;
  }

  /* Sort points into cells of a grid: `starts` of each cell in `members`. */
  function gridOf(points) {
    const cells = new Uint16Array(points.n), starts = new Uint32Array(CELLS * CELLS + 1);
    for (let i = 0; i < points.n; i++) {
      cells[i] = cellOf(points, points.places[2 * i], points.places[2 * i + 1]);
      starts[cells[i] + 1]++;
    }
    for (let c = 0; c < CELLS * CELLS; c++) starts[c + 1] += starts[c];
    const next = starts.slice(), members = new Uint32Array(points.n);
    for (let i = 0; i < points.n; i++) members[next[cells[i]]++] = i;
    return { starts, members };
  }

  const clampCell = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value * CELLS)));

  function cellOf(points, x, y) {
    return clampCell((y - points.bottom) / points.height) * CELLS + clampCell((x - points.left) / points.width);
  }

  /* The points of a rectangle, edges included, in order. */
  function pointsWithin(points, left, bottom, right, top) {
    points.grid ??= gridOf(points);
    const { starts, members } = points.grid, { places } = points, within = [];
    const first = cellOf(points, left, bottom), last = cellOf(points, right, top);
    for (let row = Math.floor(first / CELLS); row <= Math.floor(last / CELLS); row++) {
      const [from, to] = [row * CELLS + (first % CELLS), row * CELLS + (last % CELLS)];
      for (let m = starts[from]; m < starts[to + 1]; m++) {
        const i = members[m], x = places[2 * i], y = places[2 * i + 1];
        if (left <= x && x <= right && bottom <= y && y <= top) within.push(i);
      }
    }
    return within.sort((a, b) => a - b);
  }

  /* The nearest point to a place, within a distance; null if there is none. */
  function nearestPoint(points, x, y, distance) {
    let best = null, least = distance * distance;
    for (const i of pointsWithin(points, x - distance, y - distance, x + distance, y + distance)) {
      const squared = (points.places[2 * i] - x) ** 2 + (points.places[2 * i + 1] - y) ** 2;
      if (squared <= least) [best, least] = [i, squared];
    }
    return best;
  }

  return { parsePoints, drawPoints, pointsWithin, nearestPoint };
})();
