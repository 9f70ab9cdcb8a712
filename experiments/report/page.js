"use strict";
// The reader's choice of colours: as the system, light or dark. "themechange" tells whoever draws with them.
(() => {
  const KEY = "specdec-colours";
  const CHOICES = ["as the system", "light", "dark"];
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const announce = () => window.dispatchEvent(new Event("themechange"));

  function remembered() {
    try {
      return CHOICES.indexOf(localStorage.getItem(KEY));
    } catch {
      return -1; // a page from a file may have no storage
    }
  }

  function choose(index) {
    chosen = index;
    if (index === 0) delete root.dataset.theme;
    else root.dataset.theme = CHOICES[index];
    button.textContent = `Colours: ${CHOICES[index]}`;
  }

  let chosen = 0;
  choose(Math.max(remembered(), 0));
  button.hidden = false;
  button.addEventListener("click", () => {
    choose((chosen + 1) % CHOICES.length);
    try {
      localStorage.setItem(KEY, CHOICES[chosen]);
    } catch {
      // the choice holds for this visit
    }
    announce();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
  const folded = [];
  window.addEventListener("beforeprint", () => {
    root.dataset.printing = "";
    for (const one of document.querySelectorAll("details.reasons:not([open])")) {
      one.open = true; // paper has what is folded
      folded.push(one);
    }
    announce();
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.printing;
    for (const one of folded.splice(0)) one.open = false;
    announce();
  });

  // On a phone the contents would fill the first screen.
  const contents = document.querySelector("nav details");
  if (matchMedia("(max-width: 60rem)").matches) contents.open = false;
})();
