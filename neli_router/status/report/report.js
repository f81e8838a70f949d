/* The report's movements: a tooltip, a cursor, zooming by dragging, and one member lit at a time.

   The pictures are in the document already and need no script. This script only reacts to the pointer. All text is
   inserted as text: a member's name is untrusted input.
*/

"use strict";

const told = JSON.parse(document.getElementById("told").textContent);
const root = document.documentElement;
const times = document.querySelector(".times");
const owners = document.querySelector(".owners");
const shared = [...document.querySelectorAll(".times svg")];
const ticks = document.querySelector(".ticks");
const cursor = document.querySelector(".cursor");
const choice = document.querySelector(".choice");
const tip = document.querySelector(".tip");
const back = document.getElementById("whole");
const WIDTH = told.width;
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000];
let from = 0;
let to = WIDTH;

const seconds = (x) => (x / WIDTH) * told.seconds;

function lasting(time) {
  if (time < 0.9995) return `${Math.round(time * 1000)} ms`;
  if (time < 99.5) return `${time.toFixed(time < 9.95 ? 2 : 1)} s`;
  const whole = Math.round(time);
  if (time < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (time < 172800) return `${(time / 3600).toFixed(1)} h`;
  return `${(time / 86400).toFixed(1)} days`;
}

/* With a wall clock, the time of day; otherwise how long after the beginning. */
function when(time, step) {
  const digits = step >= 1 ? 0 : step >= 0.01 ? 2 : 3;
  if (told.began === null) {
    const sign = time < 0 ? "\u2212" : "";
    const whole = Math.abs(time);
    const minutes = Math.floor(whole / 60);
    const rest = (whole % 60).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
    return `${sign}${minutes}:${rest}`;
  }
  const at = new Date((told.began + time) * 1000);
  const iso = at.toISOString();
  if (step >= 86400) return iso.slice(0, 10);
  if (step >= 3600) return `${iso.slice(5, 10)} ${iso.slice(11, 16)}`;
  return digits === 0 ? iso.slice(11, 19) : iso.slice(11, 20 + digits);
}

function drawTicks() {
  const span = seconds(to - from);
  const room = Math.max(2, Math.floor(ticks.clientWidth / 92));
  const step = STEPS.find((one) => span / one <= room) ?? span / room;
  // With a wall clock, ticks are at whole minutes of the day.
  const phase = told.began === null ? 0 : told.began % step;
  const marks = [];
  for (let time = Math.ceil((seconds(from) + phase) / step) * step - phase; time <= seconds(to); time += step) {
    const mark = document.createElement("span");
    mark.textContent = when(time, step);
    const place = ((time - seconds(from)) / span) * 100;
    if (place < 3 || place > 97) continue;
    mark.style.left = `${place}%`;
    marks.push(mark);
  }
  ticks.replaceChildren(...marks);
}

function zoom(low, high) {
  from = Math.max(0, low);
  to = Math.min(WIDTH, high);
  if (to - from < WIDTH / 2000) to = from + WIDTH / 2000;
  for (const picture of shared) {
    const [, top, , height] = picture.getAttribute("viewBox").split(" ");
    picture.setAttribute("viewBox", `${from} ${top} ${to - from} ${height}`);
  }
  back.hidden = from === 0 && to === WIDTH;
  drawTicks();
}

const place = (event) => {
  const box = owners.getBoundingClientRect();
  return from + ((event.clientX - box.left) / box.width) * (to - from);
};

/* The tenure of a partition at a place: the last one that began before it. */
function tenureAt(partition, x) {
  const row = told.tenures[partition] ?? [];
  let low = 0;
  let high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle][0] <= x) low = middle + 1;
    else high = middle;
  }
  return low === 0 ? null : row[low - 1];
}

function line(text, kind = "note") {
  const one = document.createElement("p");
  one.className = kind;
  one.textContent = text;
  return one;
}

function named(name) {
  const head = document.createElement("p");
  head.className = "headline";
  const sample = document.createElement("span");
  sample.className = `cell sample ${told.looks[name]}`;
  const text = document.createElement("bdi");
  text.textContent = told.names[name];
  head.append(sample, text);
  return head;
}

function explain(event) {
  const box = owners.getBoundingClientRect();
  const partition = Math.floor(((event.clientY - box.top) / box.height) * told.partitions);
  const x = place(event);
  const tenure = partition >= 0 && partition < told.partitions ? tenureAt(partition, x) : null;
  if (tenure === null || (tenure[1] !== null && x > tenure[1])) {
    tip.replaceChildren(line(`partition ${partition}: no owner`), line(when(seconds(x), 0.01)));
  } else {
    const [start, end, name, term, cause, ending, led] = tenure;
    const length = end === null ? null : seconds(end - start);
    const lines = [named(name), line(`partition ${partition}, term ${told.base + term}`)];
    lines.push(line(`from ${when(seconds(start), 0.01)}${length === null ? ", to the end" : ` for ${lasting(length)}`}`));
    lines.push(line(`began by ${told.causes[cause]}${ending === 0 ? "" : `, ended by ${told.endings[ending]}`}`));
    if (led === null) lines.push(line("never led"));
    else if (led > 0.001) lines.push(line(`led after ${lasting(led)}`));
    tip.replaceChildren(...lines);
  }
  tip.hidden = false;
  const wide = tip.offsetWidth;
  const right = event.clientX + 16 + wide > innerWidth;
  tip.style.left = `${right ? event.clientX - wide - 12 : event.clientX + 16}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

function across(event) {
  const box = owners.getBoundingClientRect();
  const outer = times.getBoundingClientRect();
  return Math.min(Math.max(event.clientX, box.left), box.right) - outer.left;
}

let pressed = null;
times.addEventListener("pointermove", (event) => {
  const inside = event.clientX >= owners.getBoundingClientRect().left;
  cursor.hidden = !inside;
  cursor.style.left = `${across(event)}px`;
  if (pressed !== null) {
    choice.hidden = false;
    choice.style.left = `${Math.min(pressed.at, across(event))}px`;
    choice.style.width = `${Math.abs(across(event) - pressed.at)}px`;
  }
  if (event.target.closest(".owners")) explain(event);
  else tip.hidden = true;
});
times.addEventListener("pointerleave", () => {
  cursor.hidden = tip.hidden = true;
});
times.addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || !event.target.closest("svg")) return;
  pressed = { at: across(event), x: place(event) };
});
addEventListener("pointerup", (event) => {
  if (pressed === null) return;
  const x = place(event);
  const far = Math.abs(across(event) - pressed.at) > 4;
  if (far) zoom(Math.min(x, pressed.x), Math.max(x, pressed.x));
  pressed = null;
  choice.hidden = true;
});
times.addEventListener("dblclick", () => zoom(0, WIDTH));
back.addEventListener("click", () => zoom(0, WIDTH));
addEventListener("resize", drawTicks);

for (const button of document.querySelectorAll(".names button")) {
  button.addEventListener("click", () => {
    const lit = button.getAttribute("aria-pressed") !== "true";
    for (const other of document.querySelectorAll(".names button")) other.setAttribute("aria-pressed", String(lit && other === button));
    for (const picture of document.querySelectorAll(".owners, .shares")) {
      picture.classList.toggle("dimmed", lit);
      for (const path of picture.querySelectorAll("[data-name]")) path.classList.toggle("lit", path.dataset.name === button.dataset.name);
    }
  });
}

const theme = document.getElementById("theme");
const SIGNS = { system: "\u25d0 System", light: "\u25cb Light", dark: "\u25cf Dark" };
theme.addEventListener("click", () => {
  const names = Object.keys(SIGNS);
  const next = names[(names.indexOf(root.dataset.theme ?? "system") + 1) % names.length];
  root.dataset.theme = next;
  theme.textContent = SIGNS[next];
});
theme.textContent = SIGNS.system;
theme.hidden = false;
drawTicks();
