// Text form of numbers, sizes and times.

const plain = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export function count(value: number | null | undefined): string {
  return value === null || value === undefined || Number.isNaN(value) ? '–' : plain.format(value);
}

/** Number with at most three significant digits: 7, 1.25k, 38.1k, 4.20M. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (size < 10 && !Number.isInteger(value)) return value.toFixed(size < 1 ? 2 : 1);
  if (size < 1000) return String(Math.round(value));
  for (const [unit, scale] of [['k', 1e3], ['M', 1e6], ['G', 1e9], ['T', 1e12]] as const) {
    const scaled = value / scale;
    if (Math.abs(scaled) < 999.5) return `${scaled.toPrecision(3)}${unit}`;
  }
  return value.toExponential(1);
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  let scaled = value;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB', 'TiB']) {
    if (Math.abs(scaled) < 1024 || unit === 'TiB') {
      return `${unit === 'B' || scaled >= 100 ? Math.round(scaled) : scaled.toPrecision(3)}\u00a0${unit}`;
    }
    scaled /= 1024;
  }
  return '–';
}

export function percent(fraction: number): string {
  return Number.isNaN(fraction) ? '–' : `${(fraction * 100).toFixed(fraction < 0.1 ? 1 : 0)}\u00a0%`;
}

/** Duration in its two largest units: 3d 4h, 12m 5s, 4.2s, 840 ms. */
export function span(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return '–';
  if (seconds < 1) return `${Math.round(seconds * 1000)}\u00a0ms`;
  if (seconds < 9.95 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)}s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]] as const) {
    const amount = Math.floor(rest / size);
    rest -= amount * size;
    if (amount > 0) parts.push(`${amount}${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(' ') || '0s';
}

const day = new Intl.DateTimeFormat('en-CA', { year: 'numeric', month: '2-digit', day: '2-digit' });
const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });

/** Local date and time: 2026-05-04 13:07:09. */
export function moment(at: string | null | undefined): string {
  if (!at) return '–';
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? at : `${day.format(date)} ${clock.format(date)}`;
}

/** Time of day if it is today, else day and minute. */
export function brief(at: string): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return at;
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : `${day.format(date).slice(5)} ${clock.format(date).slice(0, 5)}`;
}

export function time(at: string | number): string {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? String(at) : clock.format(date);
}

export function timeMs(at: string): string {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? at : `${clock.format(date)}.${String(date.getMilliseconds()).padStart(3, '0')}`;
}

/** Duration until now, or from now. */
export function ago(at: string | null | undefined, now = Date.now()): string {
  if (!at) return '–';
  const seconds = (now - new Date(at).getTime()) / 1000;
  if (Number.isNaN(seconds)) return at;
  return seconds >= 0 ? `${span(Math.max(1, Math.round(seconds)))} ago` : `in ${span(Math.max(1, Math.round(-seconds)))}`;
}

export const yesNo = (value: boolean) => (value ? 'yes' : 'no');

/** "slow_reader" as "slow reader". */
export const words = (name: string) => name.replaceAll('_', ' ');
