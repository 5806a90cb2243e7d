// What all parts of the page use: elements, rows, numbers and times in few characters.
"use strict";

const byId = (id) => document.getElementById(id);

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Keeps a row for each name, in this order. A row that is shown already stays, and keeps the focus: somebody may use it.
function rows(body, names, make) {
  body.made ??= new Map();
  if (names.join("\n") !== body.names) {
    body.names = names.join("\n");
    names.forEach((name, at) => { if (!body.made.has(name)) body.made.set(name, make(name, at)); });
    for (const name of body.made.keys()) if (!names.includes(name)) body.made.delete(name);
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    body.replaceChildren(...names.map((name) => body.made.get(name).row));
    focused?.focus({ preventScroll: true });
  }
  return (name) => body.made.get(name);
}

// A number in few characters.
function short(number) {
  if (number === null || number === undefined) return "–";
  if (number >= 1e6) return (number / 1e6).toFixed(1) + "M";
  if (number >= 1e4) return (number / 1e3).toFixed(1) + "k";
  if (number >= 100 || Number.isInteger(number)) return String(Math.round(number));
  return number.toFixed(number < 1 ? 2 : 1);
}

// On a phone, what is nothing takes no room: it has the class `none` until it is something once.
const keep = (element, isSome) => { if (isSome) element.classList.remove("none"); };
const fill = (cell, number) => keep(Object.assign(cell, { textContent: short(number) }), number);

// A time of day, with its date where it is long ago.
const clock = (time) => (Date.now() - new Date(time) < 72000000
  ? new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
  : new Date(time).toLocaleString([], { dateStyle: "short", timeStyle: "short" }));

const counts = (errors) => Object.entries(errors).map(([kind, count]) => `${count} ${kind}`).join(", ");

const left = (ms) => {
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
};
