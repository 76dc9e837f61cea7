// Light, dark, or as the system has it.

const KEY = "dayfly-theme";
const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function theme(): Theme {
  const kept = localStorage.getItem(KEY);
  return THEMES.find((known) => known === kept) ?? "auto";
}

export function applyTheme(): void {
  const wanted = theme();
  if (wanted === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
  dispatchEvent(new Event("theme"));
}

/** Changes to the next theme and returns it. */
export function nextTheme(): Theme {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length] ?? "auto";
  localStorage.setItem(KEY, next);
  applyTheme();
  return next;
}
