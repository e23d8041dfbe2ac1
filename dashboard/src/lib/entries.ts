// Changes of actions, bridges and links to other clusters: things with a name and settings, for which messages wait.

import { call, put } from './api';
import { confirm, dialogs, type Question } from './dialogs.svelte';
import { count } from './format';
import { attempt } from './toasts.svelte';
import type { Settings } from './types';

/** Reason why an entry cannot be changed here. */
export const inFile = (noun: string): string => `This ${noun} is in the configuration file: change it there, and start the node again.`;

/** Sentence about the messages that wait for an entry; empty without any. */
export const waitingFor = (messages: number): string => (messages === 0 ? '' : messages === 1 ? '1 message waits for it. ' : `${count(messages)} messages wait for it. `);

/** Turns the entry at `path` on or off. Its `settings` stay. */
export async function turn(path: string, enabled: boolean, settings: Settings, said: { on: string; off: string }) {
  await attempt(async () => {
    await put(path, { ...settings, enabled });
    return enabled ? said.on : said.off;
  });
}

/** Asks, and ends the session of an entry at `path` that was deleted before, with the messages that wait in it. Returns true
 * if the session has ended. */
export async function deleteSession(path: string, question: Pick<Question, 'title' | 'text'>): Promise<boolean> {
  if (!(await confirm({ ...question, action: 'End session', danger: true }))) return false;
  return attempt(async () => {
    await call('DELETE', path, { query: { messages: 'delete' } });
    return 'Session ended';
  });
}

/** Asks, and deletes the entry at `path`. With the option of the question, the messages that wait for it are deleted, too.
 * Returns true if the entry is deleted. */
export async function deleteEntry(path: string, noun: string, question: Pick<Question, 'title' | 'text' | 'option'>): Promise<boolean> {
  const answer = await dialogs.ask({ ...question, action: 'Delete', danger: true });
  if (!answer.yes) return false;
  return attempt(async () => {
    await call('DELETE', path, { query: { messages: answer.option ? 'delete' : null } });
    return `${noun} ${answer.option ? 'and its messages ' : ''}deleted`;
  });
}
