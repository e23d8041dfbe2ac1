// Session of the operator: an account, whose cookie the browser keeps, or a token with its storage; and the role.

import { call, Problem } from './api';
import { toasts } from './toasts.svelte';
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
  /** The node requires a login: the form is shown. */
  asking = $state(false);
  /** Reason for which the last token or session was refused. */
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
    const ended = this.who?.session ? 'Your session has ended. Log in again.' : '';
    this.refusal = token ? detail : ended;
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

  /** Logs in with an account. The answer sets the cookie. */
  async logIn(name: string, password: string) {
    this.#drop();
    await call('POST', '/api/v1/login', { body: { name, password } });
    await this.start();
    this.refusal = '';
    this.epoch++;
  }

  #drop() {
    this.token = null;
    try {
      this.#forget();
    } catch {
      // Storage is disabled: no token was stored.
    }
  }

  #forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  }

  async signOut() {
    const ends = this.who?.session ?? false;
    this.#drop();
    try {
      if (ends) await call('POST', '/api/v1/logout');
      this.refusal = '';
    } catch (error) {
      // The cookie still works: say so instead of showing the form as if it did not.
      if (!(error instanceof Problem && error.status === 401)) {
        toasts.bad(error);
        return;
      }
    }
    this.who = null;
    this.refusal = '';
    this.asking = true;
  }
}

export const session = new Session();
