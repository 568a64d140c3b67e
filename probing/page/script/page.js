// The page: its second theme, and the sections that there are.

function setUpTheme() {
  const root = document.documentElement, button = document.querySelector(".theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.setAttribute("aria-label", "Other theme: light or dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  button.hidden = false;
  name();
}

document.body.append(tip);
setUpTheme();
for (const section of document.querySelectorAll(".neurons-of")) new RunView(section);
for (const section of document.querySelectorAll(".heads-of:has(.heads-map)")) new HeadsView(section);
