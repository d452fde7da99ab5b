"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const n = data.ids.length;
const colours = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#c53030", "#319795",
    "#d53f8c", "#65a30d", "#718096", "#a0aec0"];
const words = [...data.groups];
words[colours.length - 2] = "another group";
words[colours.length - 1] = "no group";
const short = (text, most) => text.length > most ? text.slice(0, most - 1) + "\u2026" : text;
const canvas = document.querySelector("canvas");
const pen = canvas.getContext("2d");
const out = document.querySelector("output");
const $ = id => document.getElementById(id);
const css = name => getComputedStyle(document.body).getPropertyValue(name);
const users = data.ids.map((_, i) => i);
const members = colours.map((_, g) => users.filter(i => (data.group[i] || 0) === g));
let scale, left, top_, found = -1, line = -1, waiting = false;
words.forEach((name, g) => {
  if (!data.group.includes(g)) return;
  const mark = document.createElement("span");
  mark.textContent = "\u25cf " + short(name, 30);
  mark.title = name;
  mark.style.color = colours[g];
  $("legend").append(mark);
});
["x", "y"].forEach((axis, d) => {
  const share = (data.shares || [])[d];
  $(axis).textContent = "dim" + (d + 1) +
      (share === undefined ? "" : ": " + (100 * share).toFixed(0) +
      "% of the variance of the scores");
});
const px = x => left + scale * x;
const py = y => top_ - scale * y;

function fit() {
  const r = Math.max(1, data.dim1.concat(data.dim2).reduce((m, v) => Math.max(m, Math.abs(v)),
      0)) * 1.1;
  scale = Math.min(canvas.width, canvas.height) / 2 / r;
  left = canvas.width / 2;
  top_ = canvas.height / 2;
  later();
}

function size() {
  const ratio = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  fit();
}

function later() {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(draw);
  }
}

function stroke(from, to) {
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}

function bars(i) {
  const x = px(data.dim1[i]);
  const y = py(data.dim2[i]);
  const w = 1.96 * scale * data.dim1_std[i];
  const h = 1.96 * scale * data.dim2_std[i];
  stroke([x - w, y], [x + w, y]);
  stroke([x, y - h], [x, y + h]);
}

function ticks(low, high) {
  // round numbers, at least 60 pixels apart
  const least = 60 * (devicePixelRatio || 1) / scale;
  const ten = 10 ** Math.floor(Math.log10(least));
  const step = ten * [1, 2, 5, 10].find(by => by * ten >= least);
  const first = Math.ceil(low / step);
  const all = [];
  for (let k = first; k * step <= high; k++) all.push(Number((k * step).toPrecision(12)));
  return all;
}

function rulers(ratio) {
  const right = canvas.width;
  const bottom = canvas.height;
  const text = value => String(value).replace("-", "\u2212");
  const across = ticks(-left / scale, (right - left) / scale);
  const up = ticks((top_ - bottom) / scale, top_ / scale);
  pen.strokeStyle = css("--light");
  pen.lineWidth = ratio;
  stroke([0, top_], [right, top_]);
  stroke([left, 0], [left, bottom]);
  pen.strokeStyle = pen.fillStyle = css("--text");
  for (const value of across) {
    stroke([px(value), bottom], [px(value), bottom - 5 * ratio]);
    pen.textAlign = "center";
    pen.fillText(text(value), px(value), bottom - 8 * ratio);
  }
  for (const value of up) {
    stroke([0, py(value)], [5 * ratio, py(value)]);
    pen.textAlign = "left";
    pen.fillText(text(value), 8 * ratio, py(value) + 4 * ratio);
  }
  pen.textAlign = "left";
  canvas.dataset.across = across.join(" ");
  canvas.dataset.up = up.join(" ");
}

function divide(ratio) {
  // the line c + a t = 0, a shade where this is positive, and both signs beside the line
  const c = data.intercept[line];
  const a = data.slope1[line];
  const b = data.slope2[line];
  const q = Math.hypot(a, b);
  const n1 = a / q;
  const n2 = -b / q;
  const [x, y] = [canvas.width / 2, canvas.height / 2];
  const far = 2 * (x + y);
  const away = n1 * (x - left) + n2 * (y - top_) + c * scale / q;
  const off = Math.max(-far, Math.min(far, away));
  const at = [x - off * n1, y - off * n2];
  // the point of the line that is nearest to the middle
  const place = (along, out) => [at[0] - along * n2 + out * n1, at[1] + along * n1 + out * n2];
  pen.beginPath();
  for (const each of [[-far, 0], [far, 0], [far, 2 * far],
      [-far, 2 * far]]) pen.lineTo(...place(...each));
  pen.fillStyle = css("--shade");
  pen.fill();
  pen.strokeStyle = pen.fillStyle = css("--text");
  pen.lineWidth = 2 * ratio;
  stroke(place(-far, 0), place(far, 0));
  pen.textAlign = "center";
  pen.font = "bold " + 18 * ratio + "px system-ui";
  for (const [sign, out] of [["+", 16], ["\u2212", -16]]) {
    const [u, v] = place(0, out * ratio);
    pen.fillText(sign, u, v + 6 * ratio);
  }
  pen.textAlign = "left";
  canvas.dataset.positive = [n1, -n2].map(each => each.toFixed(2)).join(" ");
}

function draw() {
  waiting = false;
  const ratio = devicePixelRatio || 1;
  const dot = (n > 20000 ? 2 : n > 2000 ? 3 : 5) * ratio;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (line >= 0) divide(ratio);
  pen.font = 12 * ratio + "px system-ui";
  rulers(ratio);
  for (let g = colours.length - 1; g >= 0; g--) {
    pen.fillStyle = colours[g];
    for (const i of members[g]) pen.fillRect(px(data.dim1[i]) - dot / 2,
        py(data.dim2[i]) - dot / 2, dot, dot);
  }
  pen.fillStyle = css("--text");
  const shown = found < 0 ? data.named : [found, ...data.named];
  const taken = [];
  for (const i of shown) {
    pen.strokeStyle = colours[data.group[i] || 0];
    bars(i);
    const name = short(data.ids[i], 24);
    const x = px(data.dim1[i]) + dot;
    const y = py(data.dim2[i]) - dot;
    const end = x + pen.measureText(name).width;
    const free = ([from, to, at]) => end < from || x > to || Math.abs(y - at) > 12 * ratio;
    // a name is left out where it would cover another one
    if (taken.every(free)) {
      pen.fillText(name, x, y);
      taken.push([x, end, y]);
    }
  }
  if (found >= 0) {
    pen.strokeStyle = css("--text");
    pen.lineWidth = 2 * ratio;
    pen.beginPath();
    pen.arc(px(data.dim1[found]), py(data.dim2[found]), 8 * ratio, 0, 7);
    pen.stroke();
  }
  canvas.dataset.points = n;
}
const told = i => short(data.ids[i], 60) + ": " +
    ["dim1", "dim2"].map(d => data[d][i].toFixed(2) + " \u00b1 " +
    (1.96 * data[d + "_std"][i]).toFixed(2)).join(", ") + ", " + (data.n_ratings[i] ?? "?") +
    " ratings" + (data.group.length ? ", " + short(words[data.group[i]], 60) : "");

function say(i) {
  const some = data.count > n ? n + " of " + data.count : n;
  out.textContent = i >= 0 ? told(i) : some + " users. Wheel: zoom. Drag: move.";
}

function at(event) {
  const box = canvas.getBoundingClientRect();
  const ratio = canvas.width / box.width;
  return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
}

function nearest([x, y]) {
  let best = -1, least = 15 * 15 * (devicePixelRatio || 1) ** 2;
  for (let i = 0; i < n; i++) {
    const d = (px(data.dim1[i]) - x) ** 2 + (py(data.dim2[i]) - y) ** 2;
    if (d < least) {
      least = d;
      best = i;
    }
  }
  return best;
}

function search(text) {
  found = data.ids.indexOf(text);
  say(found);
  if (text && found < 0) out.textContent = "There is no user " + text + " on the map.";
  later();
}

function cut(text) {
  line = data.items.indexOf(text);
  const item = short(text, 60);
  const c = data.intercept[line];
  out.textContent = line >= 0 ? "On the shaded side of the line, with the +, the score of " +
      item + " is positive." : text ? "There is no item " + item + " on the map." : "";
  if (line >= 0 && !Math.hypot(data.slope1[line], data.slope2[line])) {
    line = -1;
    // nowhere is its answer open
    out.textContent = "The score of " + item + " is " + (c > 0 ? "positive" : "negative") +
        " everywhere.";
  }
  later();
}
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const [x, y] = at(event);
  const by = Math.exp(-event.deltaY / 500);
  left = x + (left - x) * by;
  top_ = y + (top_ - y) * by;
  scale *= by;
  later();
}, { passive: false });
canvas.addEventListener("pointermove", event => {
  if (event.buttons) {
    const ratio = devicePixelRatio || 1;
    left += event.movementX * ratio;
    top_ += event.movementY * ratio;
    later();
  } else {
    const i = nearest(at(event));
    say(i < 0 ? found : i);
  }
});
$("user").addEventListener("input", event => search(event.target.value));
$("item").addEventListener("input", event => cut(event.target.value));
$("all").addEventListener("click", fit);
addEventListener("resize", size);
size();
say(-1);
const asked = new URLSearchParams(location.hash.slice(1));
if (asked.has("user")) search($("user").value = asked.get("user"));
if (asked.has("item")) cut($("item").value = asked.get("item"));
