import type { Component } from 'svelte';
import Actions from './Actions.svelte';
import Api from './Api.svelte';
import Audit from './Audit.svelte';
import Bans from './Bans.svelte';
import Bridges from './Bridges.svelte';
import Clients from './Clients.svelte';
import Cluster from './Cluster.svelte';
import Configuration from './Configuration.svelte';
import Connectors from './Connectors.svelte';
import Keys from './Keys.svelte';
import Links from './Links.svelte';
import Log from './Log.svelte';
import Missing from './Missing.svelte';
import Overview from './Overview.svelte';
import Retained from './Retained.svelte';
import Rules from './Rules.svelte';
import Subscriptions from './Subscriptions.svelte';
import Test from './Test.svelte';
import Topics from './Topics.svelte';
import Trace from './Trace.svelte';
import Users from './Users.svelte';

const pages: Record<string, Component> = {
  overview: Overview,
  cluster: Cluster,
  clients: Clients,
  subscriptions: Subscriptions,
  retained: Retained,
  topics: Topics,
  test: Test,
  trace: Trace,
  log: Log,
  bridges: Bridges,
  links: Links,
  connectors: Connectors,
  actions: Actions,
  users: Users,
  rules: Rules,
  bans: Bans,
  configuration: Configuration,
  keys: Keys,
  audit: Audit,
  api: Api,
};

export const pageOf = (id: string): Component => (Object.hasOwn(pages, id) ? pages[id]! : Missing);
