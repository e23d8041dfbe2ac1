// Pages in the order of the menu. `g` and then `key` opens one.

import type { IconName } from './icons';
import type { Role } from './types';

export interface Entry {
  id: string;
  title: string;
  icon: IconName;
  key: string;
  role: Role;
}

export const menu: { title: string; entries: Entry[] }[] = [
  {
    title: 'Monitoring',
    entries: [
      { id: 'overview', title: 'Overview', icon: 'overview', key: 'o', role: 'viewer' },
      { id: 'cluster', title: 'Cluster', icon: 'cluster', key: 'n', role: 'viewer' },
      { id: 'clients', title: 'Clients', icon: 'clients', key: 'c', role: 'viewer' },
      { id: 'subscriptions', title: 'Subscriptions', icon: 'subscriptions', key: 's', role: 'viewer' },
      { id: 'retained', title: 'Retained', icon: 'retained', key: 'r', role: 'viewer' },
      { id: 'topics', title: 'Topic metrics', icon: 'metrics', key: 'm', role: 'viewer' },
    ],
  },
  {
    title: 'Troubleshooting',
    entries: [
      { id: 'test', title: 'Test client', icon: 'test', key: 'p', role: 'operator' },
      { id: 'trace', title: 'Trace', icon: 'trace', key: 't', role: 'operator' },
      { id: 'log', title: 'Log', icon: 'log', key: 'l', role: 'viewer' },
    ],
  },
  {
    title: 'Integration',
    entries: [
      { id: 'bridges', title: 'Bridges', icon: 'bridges', key: 'd', role: 'viewer' },
      { id: 'links', title: 'Cluster links', icon: 'links', key: 'x', role: 'viewer' },
      { id: 'connectors', title: 'Connectors', icon: 'connectors', key: 'v', role: 'viewer' },
      { id: 'actions', title: 'Actions', icon: 'actions', key: 'w', role: 'viewer' },
    ],
  },
  {
    title: 'Access',
    entries: [
      { id: 'users', title: 'Users', icon: 'users', key: 'u', role: 'viewer' },
      { id: 'rules', title: 'Access rules', icon: 'rules', key: 'e', role: 'viewer' },
      { id: 'bans', title: 'Bans', icon: 'bans', key: 'b', role: 'viewer' },
    ],
  },
  {
    title: 'Administration',
    entries: [
      { id: 'configuration', title: 'Configuration', icon: 'config', key: 'f', role: 'viewer' },
      { id: 'keys', title: 'API keys', icon: 'keys', key: 'k', role: 'admin' },
      { id: 'audit', title: 'Audit', icon: 'audit', key: 'a', role: 'admin' },
      { id: 'api', title: 'API', icon: 'api', key: 'i', role: 'viewer' },
    ],
  },
];
