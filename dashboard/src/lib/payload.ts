// Payloads come from clients and are not trusted: they are decoded here and shown as text only.

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}

export function toBase64(data: Uint8Array): string {
  let binary = '';
  for (const byte of data) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/** Decodes UTF-8; `null` if the bytes are not UTF-8. With `cut`, the last character may be incomplete. */
export function asText(data: Uint8Array, cut = false): string | null {
  for (let less = 0; less <= (cut ? Math.min(3, data.length) : 0); less++) {
    try {
      return new TextDecoder('utf-8', { fatal: true }).decode(data.subarray(0, data.length - less));
    } catch {
      // Retry with one byte less.
    }
  }
  return null;
}

export function asJson(text: string | null): string | null {
  if (text === null || !/^\s*[[{"\d-]|^\s*(true|false|null)/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** Hex dump: per line the offset, 16 bytes and their printable characters. */
export function asHex(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join('\n');
}

/** Parses "de ad be ef" or "deadbeef"; `null` if it is not hexadecimal. */
export function fromHex(text: string): Uint8Array | null {
  const digits = text.replace(/[\s:]/g, '');
  if (digits.length % 2 !== 0 || /[^0-9a-f]/i.test(digits)) return null;
  return new Uint8Array((digits.match(/../g) ?? []).map((pair) => parseInt(pair, 16)));
}

/** Payload as one line of a table. */
export function preview(data: Uint8Array, cut: boolean): string {
  const text = asText(data, cut);
  if (text === null) return [...data.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
  // eslint-disable-next-line no-control-regex
  return text.slice(0, 300).replace(/[\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069]+/g, ' ');
}

/** Saves a file through the browser. */
export function download(name: string, type: string, text: string) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const anchor = document.createElement('a');
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
