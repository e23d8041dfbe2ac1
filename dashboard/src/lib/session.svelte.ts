// Session of the operator: the token, its storage in the browser, and its role.

import { call } from './api';
import type { Role, WhoAmI } from './types';

const KEY = 'meridian.token';
const RANK: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

function stored(): string | null {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

class Session {
  token = $state.raw<string | null>(stored());
  who = $state.raw<WhoAmI | null>(null);
  /** The node requires a token: the sign-in form is shown. */
  asking = $state(false);
  /** Reason for which the last token was refused. */
  refusal = $state('');
  /** Grows with every sign-in; everything that depends on it loads again. */
  epoch = $state(0);

  can(role: Role): boolean {
    return this.who !== null && RANK[this.who.role] >= RANK[role];
  }

  /** Tooltip of a control that needs `role`; `undefined` if the session has it. */
  why(role: Role): string | undefined {
    return this.can(role) ? undefined : `Needs the role ${role}`;
  }

  async start() {
    this.who = await call<WhoAmI>('GET', '/api/v1/whoami');
    this.asking = false;
  }

  /** Handles status 401 for a request with `token`. */
  refuse(token: string | null, detail: string) {
    if (token !== this.token) return;
    this.refusal = token ? detail : '';
    this.who = null;
    this.asking = true;
  }

  async signIn(token: string, remember: boolean) {
    this.token = token;
    await this.start();
    this.refusal = '';
    try {
      this.#forget();
      (remember ? localStorage : sessionStorage).setItem(KEY, token);
    } catch {
      // Storage may be disabled: the token is then kept until the page is closed.
    }
    this.epoch++;
  }

  #forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  }

  signOut() {
    this.token = null;
    this.who = null;
    this.refusal = '';
    try {
      this.#forget();
    } catch {
      // Storage is disabled: no token was stored.
    }
    this.asking = true;
  }
}

export const session = new Session();
