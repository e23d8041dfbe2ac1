// Light, dark, or as the system says. The choice is an attribute of the root element; app.css does the rest.

export type Choice = 'system' | 'light' | 'dark';

const KEY = 'meridian.theme';

class Theme {
  choice = $state<Choice>('system');

  constructor() {
    try {
      const kept = localStorage.getItem(KEY);
      if (kept === 'light' || kept === 'dark') this.choose(kept);
    } catch {
      // No storage: the system decides.
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
      // Kept for this page only.
    }
  }

  next() {
    this.choose(this.choice === 'system' ? 'dark' : this.choice === 'dark' ? 'light' : 'system');
  }
}

export const theme = new Theme();
