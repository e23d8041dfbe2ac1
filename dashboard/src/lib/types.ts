// Answers of the REST API of a node, as far as the dashboard reads them. Sizes are bytes; times are RFC 3339 in UTC.

export type Role = 'viewer' | 'operator' | 'admin';

export interface Page<T> {
  items: T[];
  next: string | null;
  /** Nodes of the cluster that did not answer. */
  missing?: string[];
}

/** Problem of a node, with what to do about it. */
export interface Alarm {
  /** Node that has the problem. */
  node: string;
  severity: 'error' | 'warning' | 'notice';
  code: string;
  text: string;
}

export interface WhoAmI {
  name: string | null;
  role: Role;
  open: boolean;
  /** The caller has the session of an account, not a token. */
  session: boolean;
}

export interface Listener {
  name: string;
  address: string;
  connections: number;
  connections_max: number;
}

export interface NodeInfo {
  name: string;
  version: string;
  commit: string;
  pid: number;
  started_at: string;
  uptime_s: number;
  workers: number;
  state: string;
  data_dir: string | null;
  listeners: Listener[];
  connections_max: number;
  /** False while it is drained. A node of an earlier version does not say it. */
  accepts_clients?: boolean;
  http: string;
  os: string;
  cpus: number;
  /** Clients may connect without a login, until the first user is added. */
  open_until_first_user: boolean;
  connections: number;
  sessions: number;
  subscriptions: number;
  messages_received: number;
  messages_sent: number;
  cluster: null | {
    role: 'core' | 'replicant';
    region: string;
    acknowledging: boolean;
    attached_to: string | null;
    clock_offset_s: number | null;
    links: NodeLink[];
    /** Shards that the node leads. A node of an earlier version has none. */
    shards?: LedShard[];
  };
}

/** Shard of the session store as its leader knows it. */
export interface LedShard {
  shard: number;
  sessions: number;
  connected: number;
  subscriptions: number;
  queued_messages: number;
  queued_bytes: number;
  retained_messages: number;
  retained_bytes: number;
  /** Other replicas. */
  replicas: { node: string; behind: number | null; silent_s: number | null }[];
}

/** Shards that the cores have agreed on, as the node that answers knows them. */
export interface Shards {
  replicas: number;
  items: { shard: number; leader: string | null; replicas: string[]; joining: string | null; leaving: string | null }[];
}

/** Drain of a node: clients are taken away from it. */
export interface Drain {
  node: string;
  kind: 'drain' | 'rebalance' | 'stop';
  /** Nodes that get the clients and shards; empty: any. A node of an earlier version does not say it. */
  to?: string[];
  state: 'waiting' | 'disconnecting' | 'paused' | 'drained';
  paused_because: string | null;
  clients_before: number;
  clients_left: number;
  disconnected: number;
  shards_led: number;
  sessions_stay: number;
  rate: number;
  left_s: number | null;
  started_at: string;
  by: string | null;
}

/** Clients of all nodes, and those that stay after a rebalance. */
export interface Rebalanced {
  mean: number;
  tolerance_percent: number | null;
  nodes: { node: string; connections: number | null; accepts_clients: boolean; keep: number | null }[];
}

/** Node that is connected, or was tried, and is not a member. */
export interface UnjoinedPeer {
  address: string;
  name: string | null;
  reason: string;
  last_s: number;
  count: number;
}

/** State of the meta group, as the node that answers knows it. */
export interface Membership {
  /** No majority of the cores is reachable: all values are the last known ones. */
  stale: boolean;
  /** The node is a member since its last start. */
  joined: boolean;
  waits_for: string | null;
  members: MetaMember[];
  /** `null`: the node is a replicant. */
  replica: null | {
    raft_state: 'leader' | 'follower' | 'candidate' | 'learner' | 'stopped';
    term: number;
    leader: string | null;
    /** Relay between this core and the leader; `null`: they reach each other. */
    leader_via: string | null;
    quorum: boolean;
    voters: number;
    failure: string | null;
  };
}

export interface MetaMember {
  node: string;
  role: 'core' | 'replicant';
  region: string;
  address: string;
  incarnation: number;
  state: 'alive' | 'leaving' | 'suspect' | 'dead';
  votes: boolean;
  leads: boolean;
}

/** Link of a node to another one, as the node sees it. */
export interface NodeLink {
  node: string;
  role: 'core' | 'replicant';
  region: string;
  state: 'up' | 'suspect' | 'dead';
  state_s: number;
  round_trip_ms: number | null;
  clock_ahead_s: number | null;
  clock_differs: boolean;
  retransmitted_percent: number;
  waiting_bytes: number;
  waiting_frames: number;
  oldest_s: number;
  bytes_sent: number;
  bytes_received: number;
  last_error: string | null;
}

export interface Traffic {
  messages: number;
  messages_by_qos: number[];
  bytes: number;
}

export interface WorkerStats {
  worker: number;
  connections: number;
  turns: number;
  busy_us: number;
  turn_us_p50: number;
  turn_us_p99: number;
  queued_bytes: number;
  mailbox_bytes: number;
}

export interface Stats {
  at: string;
  uptime_s: number;
  connections: number;
  sessions: number;
  subscriptions: number;
  routes: number;
  retained: { messages: number; bytes: number };
  queued: { messages: number; bytes: number; offline_bytes: number; oldest_age_s: number | null };
  received: Traffic;
  sent: Traffic;
  packets_received: Record<string, number>;
  packets_sent: Record<string, number>;
  dropped: { total: number; by_reason: Record<string, number> };
  counters: Record<string, number>;
  auth: Record<string, number>;
  accept_errors: number;
  workers: WorkerStats[];
  process: { cpu_s: number; resident_bytes: number; open_fds: number; max_fds: number; threads: number };
}

/** Figures of one step. Rates are per second. */
export interface HistoryFigures {
  connections: number;
  sessions: number;
  messages_received_per_s: number;
  messages_sent_per_s: number;
  bytes_received_per_s: number;
  bytes_sent_per_s: number;
  packets_received_per_s: number;
  packets_sent_per_s: number;
  dropped_per_s: number;
  queued_messages: number;
  queued_bytes: number;
  offline_bytes: number;
  resident_bytes: number;
  cpus_busy: number;
  reactors: number;
  reactors_busy: number;
  reactor_busiest: number;
}

/** One list per figure, oldest first; `null`: no sample. */
export interface RecordedHistory {
  step_s: number;
  until: string | null;
  nodes: string[];
  missing?: string[];
  /** Number of nodes with a sample, for each step. */
  summed: number[];
  series: Record<keyof HistoryFigures, (number | null)[]> & { dropped_per_s_by_reason: Record<string, (number | null)[]> };
}

export interface TopEntry {
  client_id?: string;
  topic?: string;
  messages_per_s: number;
  bytes_per_s: number;
}

export interface Top {
  window_s: number;
  sample: number;
  publishers: TopEntry[];
  subscribers: TopEntry[];
  topics: TopEntry[];
}

export interface Client {
  client_id: string;
  connected: boolean;
  address: string | null;
  username: string | null;
  version: string | null;
  connected_at: string | null;
  keep_alive_s: number | null;
  durable: boolean;
  subscriptions: number;
  inflight: number;
  queued_messages: number;
  queued_bytes: number;
  messages_received: number;
  messages_sent: number;
  node: string;
}

export interface ClientDetail extends Client {
  connection: null | {
    worker: number;
    listener: string | null;
    receive_maximum: number;
    packet_size_max: number | null;
    topic_alias_max: number;
    last_packet_ms: number;
    unsent_bytes: number;
    publisher_blocked: boolean;
    has_will: boolean;
    oldest_unacknowledged_ms: number | null;
    client_attrs?: Record<string, string[]>;
  };
  session: null | {
    expiry_s: number | null;
    expires_at: string | null;
    inflight: number;
    queued_messages: number;
    queued_bytes: number;
    oldest_queued_age_s: number | null;
    waiting_publishers: number;
    will_due_at: string | null;
  };
}

export interface Subscription {
  filter: string;
  qos: number;
  no_local: boolean;
  retain_as_published: boolean;
  retain_handling: number;
  subscription_id: number | null;
  client_id: string;
  connected: boolean;
  node: string;
}

export interface QueueItem {
  state: 'inflight' | 'waiting';
  packet_id: number | null;
  topic: string;
  qos: number;
  retain: boolean;
  payload_bytes: number;
  age_ms: number;
  expires_in_s: number | null;
  payload?: string;
}

export interface Receiver {
  client_id: string;
  node: string;
  connected: boolean;
  durable: boolean;
  filters: string[];
  qos: number;
  share: string | null;
}

export interface Retained {
  topic: string;
  qos: number;
  payload_bytes: number;
  age_s: number;
  expires_in_s: number | null;
}

export interface RetainedMessage extends Retained {
  payload_base64: string;
  payload: string | null;
  content_type: string | null;
  user_properties: [string, string][];
}

export interface TopicMetric {
  filter: string;
  since_at: string;
  received: { messages: number; by_qos: number[]; bytes: number };
  sent: { messages: number; by_qos: number[]; bytes: number };
  dropped: number;
}

export interface SlowSubscriber {
  client_id: string;
  latency_ms: number;
  topic: string;
  at: string;
  acknowledged: boolean;
}

export interface Ban {
  id: string;
  kind: 'client_id' | 'username' | 'address';
  value: string;
  reason: string;
  by: string | null;
  created_at: string;
  until: string | null;
}

/** Publish limits for each client of a user; 0: no limit. */
export interface Rates {
  messages_per_second: number;
  messages_burst: number;
  bytes_per_second: number;
  bytes_burst: number;
}

export interface User {
  name: string;
  enabled: boolean;
  superuser: boolean;
  has_password: boolean;
  has_scram: boolean;
  tenant: string | null;
  attributes: Record<string, string>;
  rates: Rates | null;
  rules: string[];
  description: string;
  created_at: string;
  changed_at: string;
}

export interface Rule {
  id: string;
  position: number;
  rule: string;
  enabled: boolean;
  description: string;
  author: string;
  changed_at: string;
}

export interface DecisionStep {
  by: string;
  opinion: 'allow' | 'deny' | 'none' | 'later' | 'failed';
  reason: string;
}

export interface Decision {
  allowed: boolean;
  decided_by: string;
  reason: string;
  steps: DecisionStep[];
}

export interface TraceEvent {
  at: string;
  kind: string;
  client_id: string;
  address: string | null;
  worker: number;
  topic?: string;
  qos?: number;
  retain?: boolean;
  packet_id?: number;
  payload_bytes?: number;
  payload?: string;
  reason_code?: number;
  detail: string;
}

export interface LogItem {
  at: string;
  level: string;
  target: string;
  message: string;
  fields: Record<string, unknown>;
}

export interface LogLevel {
  level: string;
  until: string | null;
}

export interface Setting {
  name: string;
  section: string;
  value: string | null;
  default: string | null;
  type: string;
  doc: string;
  range: string | null;
  choices: string[] | null;
  source: string;
  cluster: { value: string; by: string | null; comment: string; at: string } | null;
  reloadable: boolean;
  pending: string | null;
}

export interface Configuration {
  version: number;
  settings: Setting[];
  file: string | null;
  refused: { name: string; detail: string }[];
}

export interface SettingChange {
  name: string;
  before: string | null;
  after: string | null;
}

export interface ConfigVersion {
  version: number;
  at: string;
  by: string | null;
  comment: string;
  changes: SettingChange[];
}

export interface ApiKey {
  name: string;
  role: Role;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  token?: string;
}

export interface Account {
  name: string;
  role: Role;
  created_at: string;
  changed_at: string;
  sessions: number;
}

export interface AuditEntry {
  at: string;
  by: string | null;
  role: string | null;
  address: string;
  method: string;
  path: string;
  status: number;
  detail: string | null;
}

/** Bridge to another broker, as it is configured. */
export interface BridgeEntry {
  name: string;
  enabled: boolean;
  source: 'file' | 'store';
  settings: Settings;
  author: string;
  changed_at: string | null;
  /** Reason why the node that was asked cannot run it. */
  fault: string | null;
}

/** Bridge to another broker, as it runs. Counters are since the start of the node that runs it. */
export interface Bridge {
  name: string;
  node: string;
  /** False for a session whose bridge is not configured any more. */
  configured: boolean;
  /** Null for a session whose bridge is not configured any more. */
  source: 'file' | 'store' | null;
  enabled: boolean;
  connected: boolean;
  /** It has made no progress for more than 30 s, or is not configured any more. */
  failing: boolean;
  /** State in words, with the address or the reason. */
  state: string;
  connected_s: number | null;
  last_error: string | null;
  /** Client Identifier of the session in which messages wait. */
  session: string;
  queued_messages: number;
  queued_bytes: number;
  /** Seconds that the oldest message has waited. */
  oldest_s: number | null;
  in_flight_out: number;
  in_flight_in: number;
  messages_out: number;
  bytes_out: number;
  messages_in: number;
  bytes_in: number;
  refused: number;
  /** Times that it connected again because a broker refused a message for now. */
  postponed: number;
  dropped: number;
  dropped_by_cause: BridgeDrops;
  reconnects: number;
  failed_attempts: number;
  remote_sessions_lost: number;
}

/** Messages of a bridge that were dropped, by cause. */
export interface BridgeDrops {
  queue: number;
  too_large: number;
  no_room: number;
  not_ready: number;
  too_many_hops: number;
  closes: number;
  /** The message was at the other broker before. Nothing is lost. */
  looped: number;
  unmapped: number;
}

/** Link to another cluster, with what all nodes know about it. */
export interface ClusterLink {
  name: string;
  enabled: boolean;
  source: 'file' | 'store';
  own_name: string;
  address: string;
  /** Topic Filters that this cluster takes, and those that the other one may take. */
  topics: string[];
  export: string[];
  settings: Settings;
  author: string;
  changed_at: string | null;
  /** Reason why it cannot be used. */
  fault: string | null;
  /** An entry for each cluster of origin. Counters are since the start of the node that runs it. */
  taking: LinkTaking[];
  /** An entry for each session of the other cluster. */
  giving: LinkGiving[];
  /** The last client that was refused although it used the name of the link. */
  refusal: { node: string; at: string; address: string | null; why: string; count: number } | null;
}

export interface LinkTaking {
  origin: string;
  node: string;
  /** State in words, with the address or the reason. */
  state: string;
  connected: boolean;
  /** It has made no progress for more than 30 s. */
  failing: boolean;
  connected_s: number | null;
  address: string | null;
  session: string;
  filters_wanted: number;
  filters_subscribed: number;
  filters_refused: number;
  /** Those of `filters_wanted` that stand for several filters of clients, which have more than `filters_max`. */
  filters_broader: number;
  broader: string[];
  stale_filters: number;
  messages: number;
  bytes: number;
  in_flight: number;
  refused: number;
  postponed: number;
  dropped: Record<string, number>;
  reconnects: number;
  failed_attempts: number;
  remote_sessions_lost: number;
  restores: number;
  last_error: string | null;
}

export interface LinkGiving {
  origin: string;
  node: string;
  session: string;
  connected: boolean;
  connection_node: string | null;
  address: string | null;
  filters: number;
  queued_messages: number;
  queued_bytes: number;
  oldest_s: number | null;
  in_flight: number;
  dropped: number;
}

export type ConnectorKind = 'http' | 'postgresql' | 'kafka' | 'line_protocol' | 'file';
export type ActionKind = 'republish' | ConnectorKind;

/** Settings by name; only those that differ from the default. */
export type Settings = Record<string, string | number | boolean>;

export interface Connector {
  name: string;
  kind: ConnectorKind;
  source: 'file' | 'store';
  settings: Settings;
  used_by: string[];
  author: string;
  changed_at: string | null;
}

export interface ConnectorTest {
  ok: boolean;
  message: string;
  took_ms: number;
}

export interface ActionStatus {
  node: string;
  state: 'running' | 'retrying' | 'starting' | 'stopped';
  failing: boolean;
  since_s: number;
  last_error: string | null;
  session: string;
  queued_messages: number;
  /** A node of an earlier version does not say these. */
  queued_bytes?: number;
  oldest_s?: number | null;
  in_flight: number;
  received: number;
  not_selected: number;
  evaluation_errors: number;
  render_errors: number;
  records: number;
  written: number;
  bytes: number;
  batches: number;
  retries: number;
  refused: number;
  expired: number;
  /** A node of an earlier version does not count them. */
  given_up?: number;
  dead_letters: number;
  fallbacks: number;
  dropped: number;
  /** Parts of `dropped`. A node of an earlier version does not count them. */
  dropped_queue?: number;
  dropped_qos0?: number;
  loops: number;
  last_write_ms: number | null;
}

export interface Action {
  name: string;
  enabled: boolean;
  source: 'file' | 'store';
  kind: ActionKind;
  rule: string;
  connector: string;
  description: string;
  settings: Settings;
  author: string;
  changed_at: string | null;
  /** `null`: no node runs the action at present. */
  status: ActionStatus | null;
}

export interface ActionTrial {
  matched: boolean;
  outputs: unknown[];
  records: { fields: { name: string; value: string | null }[] }[];
  error: null | { where: 'rule' | 'evaluation' | 'template'; message: string };
  /** Message that was used, in a test with the next live message. */
  message?: unknown;
}
