// Moving about with single keys, and the help that tells of them. Whoever needs these keys for
// something else, such as dictating, turns them off in the help.

const KEPT = "racewatch.keys";
const help = document.getElementById("help");
const choice = help.querySelector("[data-keys]");
const ROWS = ".grid tbody tr, table[data-rows] tbody tr, table.list tbody tr, table.issue tbody tr";

let on = true;
try {
  on = localStorage.getItem(KEPT) !== "off";
} catch {
  // A browser that keeps nothing: they are on.
}
choice.checked = on;
choice.addEventListener("change", () => {
  on = choice.checked;
  try {
    localStorage.setItem(KEPT, on ? "on" : "off");
  } catch {
    // It holds for this page.
  }
});
for (const button of document.querySelectorAll("[data-help]")) button.addEventListener("click", ask);

function ask() {
  if (help.open) help.close();
  else help.showModal();
}

function typing(element) {
  return element.matches("input, select, textarea, [contenteditable]");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const target = event.target;
  if (event.key === "Escape" && typing(target) && !help.open) target.blur();
  if (!on || typing(target) || (help.open && event.key !== "?")) return;
  const act = ACTIONS[event.key];
  if (act && act() !== false) event.preventDefault();
});

const ACTIONS = {
  j: () => row(1),
  k: () => row(-1),
  l: () => beside(1),
  h: () => beside(-1),
  n: () => follow("next"),
  p: () => follow("prev"),
  "/": search,
  "?": ask,
  y: copy,
};

function focused() {
  const element = document.activeElement;
  return element && element.closest("tbody tr") ? element : null;
}

// To the same column of another row; at first, to the first row that is in sight.
function row(step) {
  const rows = [...document.querySelectorAll(ROWS)].filter((one) => one.querySelector("a"));
  if (!rows.length) return false;
  const element = focused();
  const at = element ? rows.indexOf(element.closest("tr")) : -1;
  if (at < 0) return go(rows.find((one) => one.getBoundingClientRect().bottom > 0) || rows[0], 0);
  const next = rows[at + step];
  if (!next) return true;
  const cell = element.closest("td, th");
  const number = [...cell.parentElement.children].indexOf(cell);
  return go(next, number);
}

function go(one, number) {
  const links = (cell) => (cell ? cell.querySelector("a") : null);
  const link = links(one.children[number]) || one.querySelector("a");
  link.focus({ preventScroll: true });
  link.scrollIntoView({ block: "nearest", inline: "nearest" });
  return true;
}

function beside(step) {
  const element = focused();
  if (!element) return row(1);
  const cells = [...element.closest("tr").children];
  for (let at = cells.indexOf(element.closest("td, th")) + step; cells[at]; at += step) {
    if (cells[at].querySelector("a")) return go(cells[at].parentElement, at);
  }
  return true;
}

function follow(which) {
  const link = document.querySelector(`main a[rel="${which}"]`);
  if (!link) return false;
  link.click();
  return true;
}

function search() {
  const field = document.querySelector("[data-search]") || document.querySelector("main form input:not([type=hidden]), main form select");
  if (!field) return false;
  field.focus();
  if (field.select) field.select();
  return true;
}

function copy() {
  const button = document.querySelector("main [data-copy]");
  if (button) button.click();
  else document.dispatchEvent(new CustomEvent("racewatch:copy", { detail: location.href }));
  return true;
}
