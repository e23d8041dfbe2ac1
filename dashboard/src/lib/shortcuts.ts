// Keyboard shortcuts of all pages. They are off in input fields and in dialogs.

import { dialogs } from './dialogs.svelte';
import { menu } from './nav';
import { href, router } from './router.svelte';
import { session } from './session.svelte';

const CHORD_MS = 1500;

export function shortcuts(): () => void {
  let chord = 0;

  function press(event: KeyboardEvent) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || session.asking) return;
    const target = event.target as HTMLElement;
    if (target.closest('input, select, textarea, [contenteditable]')) {
      if (event.key === 'Escape') target.blur();
      return;
    }
    if (document.querySelector('dialog[open]')) return;
    if (chord > event.timeStamp) {
      chord = 0;
      const entry = menu.flatMap((group) => group.entries).find((one) => one.key === event.key && session.can(one.role));
      if (entry) {
        event.preventDefault();
        router.go(href(entry.id));
      }
      return;
    }
    if (event.key === 'g') {
      chord = event.timeStamp + CHORD_MS;
    } else if (event.key === '?') {
      event.preventDefault();
      dialogs.help = true;
    } else if (event.key === '/') {
      const search = document.querySelector<HTMLInputElement>('[data-search]');
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    } else if (event.key === 'r') {
      document.querySelector<HTMLButtonElement>('[data-refresh]')?.click();
    }
  }

  addEventListener('keydown', press);
  return () => removeEventListener('keydown', press);
}
