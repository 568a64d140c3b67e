// Elements, what a cell shows, and the tip beside the pointer. Every text goes in as text, never as HTML.

function make(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function shown(value, column) {
  if (Number.isNaN(value)) return "";
  let text = (column.percent ? 100 * value : value).toFixed(column.digits);
  // What rounds to 0 has no sign.
  if (Number(text) === 0) text = text.replace("-", "");
  else if (column.signed && value > 0) text = "+" + text;
  return column.percent ? text + "%" : text;
}

const tip = make("div", { className: "tip", hidden: true });
tip.setAttribute("aria-hidden", "true");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.max(4, Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8));
  const above = y - tip.offsetHeight - 12;
  tip.style.left = left + "px";
  tip.style.top = (above > 4 ? above : y + 18) + "px";
}

function hideTip() {
  tip.hidden = true;
}
