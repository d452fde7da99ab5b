"""map.html: the positions of users on one page, in a file that needs no other.

The page draws on a canvas: a point per user; error bars of the extremes, of the users with the fewest and the most
ratings and of the one that is found; and for an item the line where its answer is open, c + a·t = 0, with a shade on
the side where it is positive. Both axes have a scale, and the share of the scores' variance that they explain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.data.locations import MAP_MARK

MOST_POINTS, REPORTED = 100_000, 1000  # on a map of its own, and on that of a report
NAMED = 4  # ids at each end of a dimension, and with the fewest and the most ratings
COLOURS = 9  # of groups; one more for all other groups, and grey for users without a group
Numbers = NDArray[np.int64]
Shares = NDArray[np.float64]


def shown(users: pa.Table, most: int) -> tuple[Numbers, Numbers]:
    """The lines of the users that are named, and of all on the map: these and an even sample of about ``most``."""
    columns = (users[name].to_numpy(zero_copy_only=False) for name in ("dim1", "dim2", "n_ratings"))
    ends = [order[part] for order in map(np.argsort, columns) for part in (slice(NAMED), slice(-NAMED, None))]
    n, named = users.num_rows, np.unique(np.concatenate(ends))
    if n <= most:
        return named, np.arange(n)
    return named, np.union1d(named, np.linspace(0, n - 1, max(0, most - len(named))).astype(np.int64))


def drawing(
    users: pa.Table, items: pa.Table, shares: Shares, most: int = MOST_POINTS, count: int | None = None
) -> dict[str, Any]:
    """What a map shows of two tables of ``FittedModel.positions`` with two dimensions, and their ``shares``.

    Of more than ``most`` users it shows those that are named and an even sample of the others; the items are those with
    the most ratings. ``count`` is the number of users where the table has only some of them.
    """
    (named, kept), n = shown(users, most), users.num_rows if count is None else count
    order = np.argsort(-items["n_ratings"].to_numpy(zero_copy_only=False), kind="stable")
    users, items = users.take(pa.array(kept)), items.take(pa.array(np.sort(order[:most])))
    names = ["n_ratings", "dim1", "dim1_std", "dim2", "dim2_std"]
    return {
        "count": n,
        "shares": shares[:2].tolist(),
        "named": np.searchsorted(kept, named).tolist(),
        "groups": [],
        "group": [],
        "ids": [str(each) for each in users.column(0).to_pylist()],
        **{name: _numbers(users[name]) for name in names},
        "items": [str(each) for each in items.column(0).to_pylist()],
        **{name: _numbers(items[name]) for name in ("intercept", "slope1", "slope2")},
    }


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return [None if not np.isfinite(value) else float(f"{value:.4g}") for value in values]


def coloured(drawn: dict[str, Any], groups: Mapping[Any, Any]) -> dict[str, Any]:
    """The drawing with a colour for each of the most frequent groups; ``groups`` are words by the id of the user.

    ``group`` has the place of each user's word in ``groups``, COLOURS for other words, COLOURS + 1 without a word.
    """
    named = {str(each): "" if word is None else str(word) for each, word in groups.items()}
    words = [named.get(each, "") for each in drawn["ids"]]
    counts = Counter(filter(None, words))
    common = sorted(counts, key=lambda word: (-counts[word], word))[:COLOURS]
    place = {word: at for at, word in enumerate(common)} | {"": COLOURS + 1}
    return drawn | {"groups": common, "group": [place.get(word, COLOURS) for word in words] if groups else []}


def groups_of(features: pa.Table, column: str) -> dict[Any, Any]:
    """The words of the ids in ``column``: those of the first other column with at most ``COLOURS`` different ones."""
    plain = [name for name in features.column_names if name != column and not pa.types.is_nested(features[name].type)]
    few = [name for name in plain if 2 <= pc.count_distinct(features[name]).as_py() <= COLOURS]
    return dict(zip(features[column].to_pylist(), features[few[0]].to_pylist(), strict=True)) if few else {}


def page(drawn: Mapping[str, Any]) -> str:
    text = json.dumps(drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return PAGE.replace("__MARK__", MAP_MARK).replace("__DATA__", text.replace("<", "\\u003c"))


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
__MARK__
<title>Positions</title>
<style>
:root { color-scheme: light dark; --text: #1a202c; --page: #fff; --light: #cbd5e0;
  --shade: #2b6cb018; }
@media (prefers-color-scheme: dark) { :root { --text: #e2e8f0; --page: #171c26; --light: #4a5568;
  --shade: #63a4e82a; } }
html, body { height: 100%; margin: 0; } body { display: flex; flex-direction: column; color: var(--text);
  background: var(--page); font: 14px/1.4 system-ui, "Helvetica Neue", Arial, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; padding: .6rem 1rem; align-items: baseline; }
h1 { font-size: 1.1rem; margin: 0; } main { flex: 1; min-height: 0; position: relative; }
canvas { position: absolute; inset: 0; width: 100%; height: 100%; touch-action: none; }
output { min-height: 1.4em; } input { width: 9rem; } #legend span { margin-right: .8rem; white-space: nowrap; }
.axis { position: absolute; pointer-events: none; font-size: 12px; background: var(--page); padding: 0 .3rem; }
#x { right: .6rem; bottom: 1.5rem; } #y { left: 2.6rem; top: .6rem; }
</style>
<header><h1>Positions</h1><label>User <input id="user"></label><label>Line of item <input id="item"></label>
<button id="all">Show all</button><output></output><div id="legend"></div></header>
<main><canvas></canvas><div class="axis" id="x"></div><div class="axis" id="y"></div></main>
<script id="data" type="application/json">__DATA__</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent), n = data.ids.length;
const colours = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#c53030", "#319795", "#d53f8c", "#65a30d",
  "#718096", "#a0aec0"], words = [...data.groups];
words[colours.length - 2] = "another group"; words[colours.length - 1] = "no group";
const short = (text, most) => text.length > most ? text.slice(0, most - 1) + "\\u2026" : text;
const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d"), out = document.querySelector("output");
const $ = id => document.getElementById(id), css = name => getComputedStyle(document.body).getPropertyValue(name);
const members = colours.map((_, g) => data.ids.map((_, i) => i).filter(i => (data.group[i] || 0) === g));
let scale, left, top_, found = -1, line = -1, waiting = false;
words.forEach((name, g) => { if (!data.group.includes(g)) return; const mark = document.createElement("span");
  mark.textContent = "\\u25cf " + short(name, 30); mark.title = name; mark.style.color = colours[g];
  $("legend").append(mark); });
["x", "y"].forEach((axis, d) => { const share = (data.shares || [])[d];
  $(axis).textContent = "dim" + (d + 1) + (share === undefined ? "" :
    ": " + (100 * share).toFixed(0) + "% of the variance of the scores"); });
const px = x => left + scale * x, py = y => top_ - scale * y;
function fit() {
  const r = Math.max(1, data.dim1.concat(data.dim2).reduce((m, v) => Math.max(m, Math.abs(v)), 0)) * 1.1;
  scale = Math.min(canvas.width, canvas.height) / 2 / r; left = canvas.width / 2; top_ = canvas.height / 2; later(); }
function size() { const ratio = devicePixelRatio || 1; canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio; fit(); }
function later() { if (!waiting) { waiting = true; requestAnimationFrame(draw); } }
function stroke(from, to) { pen.beginPath(); pen.moveTo(...from); pen.lineTo(...to); pen.stroke(); }
function bars(i) { const x = px(data.dim1[i]), y = py(data.dim2[i]);
  const w = 1.96 * scale * data.dim1_std[i], h = 1.96 * scale * data.dim2_std[i];
  stroke([x - w, y], [x + w, y]); stroke([x, y - h], [x, y + h]); }
function ticks(low, high) { // round numbers, at least 60 pixels apart
  const least = 60 * (devicePixelRatio || 1) / scale, ten = 10 ** Math.floor(Math.log10(least));
  const step = ten * [1, 2, 5, 10].find(by => by * ten >= least), first = Math.ceil(low / step), all = [];
  for (let k = first; k * step <= high; k++) all.push(Number((k * step).toPrecision(12)));
  return all; }
function rulers(ratio) {
  const right = canvas.width, bottom = canvas.height, text = value => String(value).replace("-", "\\u2212");
  const across = ticks(-left / scale, (right - left) / scale), up = ticks((top_ - bottom) / scale, top_ / scale);
  pen.strokeStyle = css("--light"); pen.lineWidth = ratio; stroke([0, top_], [right, top_]);
  stroke([left, 0], [left, bottom]); pen.strokeStyle = pen.fillStyle = css("--text");
  for (const value of across) { stroke([px(value), bottom], [px(value), bottom - 5 * ratio]);
    pen.textAlign = "center"; pen.fillText(text(value), px(value), bottom - 8 * ratio); }
  for (const value of up) { stroke([0, py(value)], [5 * ratio, py(value)]);
    pen.textAlign = "left"; pen.fillText(text(value), 8 * ratio, py(value) + 4 * ratio); }
  pen.textAlign = "left"; canvas.dataset.across = across.join(" "); canvas.dataset.up = up.join(" "); }
function divide(ratio) { // the line c + a t = 0, a shade where this is positive, and both signs beside the line
  const c = data.intercept[line], a = data.slope1[line], b = data.slope2[line], q = Math.hypot(a, b);
  const n1 = a / q, n2 = -b / q, [x, y] = [canvas.width / 2, canvas.height / 2], far = 2 * (x + y);
  const away = n1 * (x - left) + n2 * (y - top_) + c * scale / q, off = Math.max(-far, Math.min(far, away));
  const at = [x - off * n1, y - off * n2]; // the point of the line that is nearest to the middle
  const place = (along, out) => [at[0] - along * n2 + out * n1, at[1] + along * n1 + out * n2];
  pen.beginPath();
  for (const each of [[-far, 0], [far, 0], [far, 2 * far], [-far, 2 * far]]) pen.lineTo(...place(...each));
  pen.fillStyle = css("--shade"); pen.fill();
  pen.strokeStyle = pen.fillStyle = css("--text"); pen.lineWidth = 2 * ratio;
  stroke(place(-far, 0), place(far, 0)); pen.textAlign = "center"; pen.font = "bold " + 18 * ratio + "px system-ui";
  for (const [sign, out] of [["+", 16], ["\\u2212", -16]]) { const [u, v] = place(0, out * ratio);
    pen.fillText(sign, u, v + 6 * ratio); }
  pen.textAlign = "left"; canvas.dataset.positive = [n1, -n2].map(each => each.toFixed(2)).join(" "); }
function draw() {
  waiting = false; const ratio = devicePixelRatio || 1, dot = (n > 20000 ? 2 : n > 2000 ? 3 : 5) * ratio;
  pen.clearRect(0, 0, canvas.width, canvas.height); if (line >= 0) divide(ratio);
  pen.font = 12 * ratio + "px system-ui"; rulers(ratio);
  for (let g = colours.length - 1; g >= 0; g--) { pen.fillStyle = colours[g];
    for (const i of members[g]) pen.fillRect(px(data.dim1[i]) - dot / 2, py(data.dim2[i]) - dot / 2, dot, dot); }
  pen.fillStyle = css("--text");
  const shown = found < 0 ? data.named : [found, ...data.named], taken = [];
  for (const i of shown) { pen.strokeStyle = colours[data.group[i] || 0]; bars(i);
    const name = short(data.ids[i], 24), x = px(data.dim1[i]) + dot, y = py(data.dim2[i]) - dot;
    const end = x + pen.measureText(name).width, free = ([from, to, at]) => end < from || x > to ||
      Math.abs(y - at) > 12 * ratio; // a name is left out where it would cover another one
    if (taken.every(free)) { pen.fillText(name, x, y); taken.push([x, end, y]); } }
  if (found >= 0) { pen.strokeStyle = css("--text"); pen.lineWidth = 2 * ratio; pen.beginPath();
    pen.arc(px(data.dim1[found]), py(data.dim2[found]), 8 * ratio, 0, 7); pen.stroke(); }
  canvas.dataset.points = n; }
const told = i => short(data.ids[i], 60) + ": " + ["dim1", "dim2"].map(d => data[d][i].toFixed(2) + " \\u00b1 " +
  (1.96 * data[d + "_std"][i]).toFixed(2)).join(", ") + ", " + (data.n_ratings[i] ?? "?") + " ratings" +
  (data.group.length ? ", " + short(words[data.group[i]], 60) : "");
function say(i) { const some = data.count > n ? n + " of " + data.count : n;
  out.textContent = i >= 0 ? told(i) : some + " users. Wheel: zoom. Drag: move."; }
function at(event) { const box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
  return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio]; }
function nearest([x, y]) { let best = -1, least = 15 * 15 * (devicePixelRatio || 1) ** 2;
  for (let i = 0; i < n; i++) { const d = (px(data.dim1[i]) - x) ** 2 + (py(data.dim2[i]) - y) ** 2;
    if (d < least) { least = d; best = i; } } return best; }
function search(text) { found = data.ids.indexOf(text); say(found);
  if (text && found < 0) out.textContent = "There is no user " + text + " on the map."; later(); }
function cut(text) { line = data.items.indexOf(text); const item = short(text, 60), c = data.intercept[line];
  out.textContent = line >= 0 ? "On the shaded side of the line, with the +, the score of " + item + " is positive." :
    text ? "There is no item " + item + " on the map." : "";
  if (line >= 0 && !Math.hypot(data.slope1[line], data.slope2[line])) { line = -1; // nowhere is its answer open
    out.textContent = "The score of " + item + " is " + (c > 0 ? "positive" : "negative") + " everywhere."; }
  later(); }
canvas.addEventListener("wheel", event => { event.preventDefault(); const [x, y] = at(event);
  const by = Math.exp(-event.deltaY / 500); left = x + (left - x) * by; top_ = y + (top_ - y) * by; scale *= by;
  later(); }, { passive: false });
canvas.addEventListener("pointermove", event => { if (event.buttons) { const ratio = devicePixelRatio || 1;
  left += event.movementX * ratio; top_ += event.movementY * ratio; later(); }
  else { const i = nearest(at(event)); say(i < 0 ? found : i); } });
$("user").addEventListener("input", event => search(event.target.value));
$("item").addEventListener("input", event => cut(event.target.value));
$("all").addEventListener("click", fit); addEventListener("resize", size); size(); say(-1);
const asked = new URLSearchParams(location.hash.slice(1));
if (asked.has("user")) search($("user").value = asked.get("user"));
if (asked.has("item")) cut($("item").value = asked.get("item"));
</script></html>
"""
