// Colour theme: light, dark, or the one of the system. It is an attribute of the root element, which app.css uses.

export type Choice = 'system' | 'light' | 'dark';

const KEY = 'meridian.theme';

class Theme {
  choice = $state<Choice>('system');

  constructor() {
    try {
      const kept = localStorage.getItem(KEY);
      if (kept === 'light' || kept === 'dark') this.choose(kept);
    } catch {
      // Storage is disabled: the theme of the system applies.
    }
  }

  choose(choice: Choice) {
    this.choice = choice;
    if (choice === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    try {
      if (choice === 'system') localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, choice);
    } catch {
      // Storage is disabled: the choice applies to this page only.
    }
  }

  next() {
    this.choose(this.choice === 'system' ? 'dark' : this.choice === 'dark' ? 'light' : 'system');
  }
}

export const theme = new Theme();
