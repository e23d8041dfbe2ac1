// Input of the forms for users and access rules: pairs, lines, and errors of the node.

import { Problem } from './api';

/** Lines of a text, trimmed, without empty ones. */
export const lines = (text: string): string[] =>
  text
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean);

/** Parses `name=value` lines. Throws on a line without `=`. */
export function parsePairs(text: string): Record<string, string> {
  const out: Record<string, string> = {};
  for (const line of lines(text)) {
    const at = line.indexOf('=');
    if (at < 1) throw new Error(`Write an attribute as name=value, not as "${line}".`);
    out[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return out;
}

export const formatPairs = (values: Record<string, string>): string =>
  Object.entries(values)
    .map(([name, value]) => `${name}=${value}`)
    .join('\n');

/** Error message for the form that was sent. */
export function errorText(error: unknown): string {
  if (error instanceof Problem) {
    const more = error.errors.map((one) => one.detail).filter((line) => !error.message.includes(line));
    return [error.message, ...more].join('\n');
  }
  return error instanceof Error ? error.message : String(error);
}

/** States what happens to the connections of a changed user. */
export const connectionsNote = (keep: boolean): string => (keep ? 'Its connections stay open.' : 'Its connections are closed within seconds, on every node.');
