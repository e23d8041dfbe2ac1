// Hash routing: `#/clients/some%2Fid?tab=queue` is the path ["clients", "some/id"] and a query.

export interface Location {
  path: string[];
  query: URLSearchParams;
}

function read(): Location {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  return { path: path.split('/').filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

class Router {
  location = $state.raw<Location>(read());

  constructor() {
    addEventListener('hashchange', () => {
      this.location = read();
    });
  }

  get page(): string {
    return this.location.path[0] ?? 'overview';
  }

  param(name: string): string {
    return this.location.query.get(name) ?? '';
  }

  go(target: string) {
    location.hash = target;
  }

  /** Replaces the query of the current page without a new history entry. */
  query(values: Record<string, string>) {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) if (value) parameters.set(name, value);
    const text = parameters.toString();
    const path = this.location.path.map(encodeURIComponent).join('/');
    const hash = `#/${path}${text ? `?${text}` : ''}`;
    if (hash === location.hash) return;
    history.replaceState(null, '', hash);
    this.location = read();
  }
}

export const router = new Router();

export const href = (...path: string[]) => `#/${path.map(encodeURIComponent).join('/')}`;
export const clientHref = (id: string) => href('clients', id);
