// The arithmetic of charts: ticks, smoothing, ranges. It has no reference to the browser, so that it can be tested alone.

// About `count` round numbers from low to high, inclusive.
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// Powers of ten from low to high (positive), thinned to about `count`; with 2 and 5 between them if there are few.
export function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), found = [];
  const every = Math.max(1, Math.ceil((last - first) / count));
  for (let power = first; power <= last; power += every) {
    for (const each of last - first <= 2 ? [1, 2, 5] : [1]) found.push(Number((each * 10 ** power).toPrecision(12)));
  }
  return found.filter((each) => each >= low * 0.999 && each <= high * 1.001);
}

// The exponential mean with weight `share` (0 to 1) of the past, corrected at the start. Gaps (null) stay gaps.
export function smoothed(values, share) {
  if (!share) return values;
  let mean = 0, weight = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = share * mean + (1 - share) * value;
    weight = share * weight + (1 - share);
    return mean / weight;
  });
}

// [lowest, highest] of the values that can be shown, or null; with room where they are equal.
export function range(values, log = false) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (low < high) return [low, high];
  return log ? [low / 2, high * 2] : [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
}

// The index of the value nearest to x in the increasing list xs; -1 in an empty one.
export function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low < xs.length ? low : -1;
}

// Pixels of a line: of each column of pixels its first, lowest, highest and last point, so that a curve of any length
// costs the same to draw. Returns [x, y] pairs with null between pieces.
export function pixels(xs, ys, toX, toY) {
  const found = [];
  let column = null, cell = null;
  const flush = () => { if (cell) { found.push(...[...new Set([cell.first, ...(cell.lowAt < cell.highAt ? [cell.low, cell.high] : [cell.high, cell.low]), cell.last])]); cell = null; } };
  for (let i = 0; i < xs.length; i++) {
    const y = ys[i] === null || ys[i] === undefined ? null : toY(ys[i]);
    if (y === null || !Number.isFinite(y)) { flush(); if (found.length && found[found.length - 1] !== null) found.push(null); column = null; continue; }
    const x = toX(xs[i]), point = [x, y];
    if (Math.round(x) !== column) { flush(); column = Math.round(x); cell = { first: point, low: point, high: point, last: point, lowAt: i, highAt: i }; continue; }
    if (y < cell.low[1]) { cell.low = point; cell.lowAt = i; }
    if (y > cell.high[1]) { cell.high = point; cell.highAt = i; }
    cell.last = point;
  }
  flush();
  return found;
}
