// Users and access rules as they are typed: pairs and lines of text areas, and what the node finds wrong with them.

import { Problem } from './api';

/** The lines of a text that say something. */
export const lines = (text: string): string[] =>
  text
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean);

/** `name=value` lines; a line without `=` throws. */
export function pairs(text: string): Record<string, string> {
  const out: Record<string, string> = {};
  for (const line of lines(text)) {
    const at = line.indexOf('=');
    if (at < 1) throw new Error(`An attribute is written name=value, and "${line}" is not.`);
    out[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return out;
}

export const unpaired = (values: Record<string, string>): string =>
  Object.entries(values)
    .map(([name, value]) => `${name}=${value}`)
    .join('\n');

/** What to say in the form that was sent. */
export function complaint(error: unknown): string {
  if (error instanceof Problem) {
    const more = error.errors.map((one) => one.detail).filter((line) => !error.message.includes(line));
    return [error.message, ...more].join('\n');
  }
  return error instanceof Error ? error.message : String(error);
}

/** What becomes of those who are connected as a user who was changed. */
export const clientsGo = (keep: boolean): string => (keep ? 'Its connections stay open.' : 'Its connections are closed within seconds, on every node.');
