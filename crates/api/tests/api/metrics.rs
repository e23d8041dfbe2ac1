//! `/metrics`, read by a parser that accepts only the text format.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Server;

#[derive(Debug, Default)]
struct Scrape {
    kinds: BTreeMap<String, String>,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Scrape {
    fn of(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let mut scrape = Self::default();
        let (mut family, mut helped, mut seen) = (String::new(), String::new(), BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(help.trim() == help && help.len() > 4, "{line}");
                helped = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, helped, "HELP goes before TYPE");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(scrape.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
                family = name.to_owned();
            } else {
                let (name, labels, value) = sample(line);
                let kind = &scrape.kinds[&family];
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
                let own = if kind == "histogram" { base == Some(&*family) } else { name == family };
                assert!(own, "{line} in {family}");
                assert!(kind == "gauge" || value >= 0.0, "{line}");
                assert!(seen.insert((name.clone(), labels.clone())), "{line} twice");
                scrape.samples.push((name, labels, value));
            }
        }
        scrape
    }

    fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: BTreeMap<_, _> =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let found = self.samples.iter().find(|sample| sample.0 == name && sample.1 == labels);
        found.unwrap_or_else(|| panic!("{name} {labels:?}")).2
    }

    fn has(&self, name: &str, labels: &[&str]) -> bool {
        self.samples
            .iter()
            .any(|sample| sample.0 == name && sample.1.keys().map(String::as_str).eq(labels.iter().copied()))
    }
}

/// Parses `name{label="value",..} number`, and not one character more.
fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end =
        line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            let mut value = String::new();
            let mut characters = after.char_indices();
            let end = loop {
                match characters.next().unwrap_or_else(|| panic!("{line}")) {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match characters.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        other => panic!("{line}: \\{other}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
    }
    let number = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name.to_owned(), labels, number.parse().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn a_scrape_is_well_formed_and_has_the_promised_metrics() {
    let server = Server::start();
    let filter = "a \"quoted\"\\ \n level/#";
    server.write("POST", "/api/v1/topic-metrics", Some(&serde_json::json!({ "filter": filter }))).is(201);
    let answer = server.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let scrape = Scrape::of(answer.text());
    for (name, labels) in PROMISED {
        assert!(scrape.has(name, labels), "{name} {labels:?}\n{}", answer.text());
    }
    assert_eq!(
        scrape.get("meridian_topic_messages_total", &[("filter", filter), ("direction", "sent")]),
        0.0
    );
    assert_eq!(scrape.get("meridian_build_info", &[("version", "1.2.3"), ("commit", "abcdef")]), 1.0);
    let reactors = scrape.samples.iter().filter(|sample| sample.0 == "meridian_reactor_turns_total").count();
    assert_eq!(reactors, 2);
}

#[test]
fn a_node_of_a_cluster_has_metrics_of_links_and_routes() {
    let server = Server::in_cluster(Some(crate::cluster::view()));
    let scrape = Scrape::of(server.get("/metrics").text());
    for (name, labels) in PROMISED_IN_CLUSTER {
        assert!(scrape.has(name, labels), "{name} {labels:?}");
    }
    for (name, labels, value) in [
        ("meridian_cluster_acknowledging", &[][..], 0.0),
        ("meridian_cluster_unauthenticated_closed_total", &[], 7.0),
        ("meridian_cluster_subacks_waiting", &[("for", "region")], 3.0),
        ("meridian_cluster_subacks_waiting", &[("for", "cluster")], 5.0),
        ("meridian_cluster_node_suspect", &[("node", "b")], 1.0),
        ("meridian_cluster_node_filters", &[("node", "a")], 3.0),
        ("meridian_link_up", &[("peer", "b")], 0.0),
        ("meridian_link_up", &[("peer", "c")], 1.0),
        ("meridian_link_round_trip_seconds", &[("peer", "c")], 0.0015),
        ("meridian_link_clock_ahead_seconds", &[("peer", "c")], -3600.5),
        ("meridian_link_frames_retransmitted_total", &[("peer", "b"), ("class", "assured")], 7.0),
        ("meridian_link_queue_age_seconds", &[("peer", "b"), ("class", "assured")], 2.5),
        ("meridian_transport_bbr", &[], 1.0),
    ] {
        assert_eq!(scrape.get(name, labels), value, "{name} {labels:?}");
    }
    for name in ["meridian_link_round_trip_seconds", "meridian_link_clock_ahead_seconds"] {
        let occurrences = scrape.samples.iter().filter(|sample| sample.0 == name).count();
        assert_eq!(occurrences, 1, "nothing is made up for a link that never was");
    }
}

#[test]
fn a_core_has_metrics_of_members_and_raft() {
    let scrape = |view| Scrape::of(Server::in_cluster(Some(view)).get("/metrics").text());
    let core = scrape(crate::cluster::agreed());
    for (name, labels) in PROMISED_OF_CORES {
        assert!(core.has(name, labels), "{name} {labels:?}");
    }
    for (name, labels, value) in [
        ("meridian_cluster_members", &[("state", "alive")][..], 2.0),
        ("meridian_cluster_members", &[("state", "leaving")], 0.0),
        ("meridian_cluster_members", &[("state", "suspect")], 1.0),
        ("meridian_cluster_members", &[("state", "dead")], 2.0),
        ("meridian_cluster_meta_leader", &[], 1.0),
        ("meridian_cluster_meta_quorum", &[], 1.0),
        ("meridian_cluster_meta_term", &[], 3.0),
        ("meridian_cluster_meta_applied", &[], 40.0),
    ] {
        assert_eq!(core.get(name, labels), value, "{name} {labels:?}");
    }
    let mut of_replicant = crate::cluster::agreed();
    of_replicant.membership.replica = None;
    let replicant = scrape(of_replicant);
    assert!(replicant.kinds.contains_key("meridian_cluster_members"));
    let is_of_raft = |name: &&String| name.starts_with("meridian_cluster_meta_");
    assert_eq!(replicant.kinds.keys().find(is_of_raft), None, "a replicant has no part in it");
}

#[test]
fn a_node_of_no_cluster_has_no_links() {
    for server in [Server::start(), Server::in_cluster(None)] {
        let scrape = Scrape::of(server.get("/metrics").text());
        // Links to other clusters need no cluster.
        let of_cluster = |name: &&String| {
            name.starts_with("meridian_link_")
                || name.starts_with("meridian_cluster_") && !name.starts_with("meridian_cluster_link_")
        };
        assert_eq!(scrape.kinds.keys().find(of_cluster), None);
        assert_eq!(scrape.get("meridian_messages_forwarded_total", &[]), 0.0);
    }
}

/// A scrape that contains a series twice would be refused as a whole.
#[test]
fn certificates_of_a_listener_come_once_with_their_end() {
    let server = Server::start();
    let scrape = Scrape::of(server.get("/metrics").text());
    let name = "meridian_certificate_not_after_timestamp_seconds";
    let ends = |listener, file| {
        scrape.get(name, &[("listener", listener), ("kind", "server"), ("certificate", file)])
    };
    assert_eq!(ends("a", "a.crt"), 1_900_000_000.0);
    assert_eq!(ends("b", "a.crt"), 1_900_000_000.0);
    assert_eq!(ends("b", "b.crt"), 5.0);
    assert_eq!(scrape.samples.iter().filter(|sample| sample.0 == name).count(), 3);
}

#[test]
fn buckets_of_a_histogram_never_fall() {
    let server = Server::start();
    (0..20).for_each(|_| drop(server.get("/health/live")));
    let scrape = Scrape::of(server.get("/metrics").text());
    let mut last = (0.0, 0.0);
    for (name, labels, value) in &scrape.samples {
        if name == "meridian_http_request_seconds_bucket" {
            let le: f64 = labels["le"].parse().unwrap();
            assert!(le > last.0 && *value >= last.1, "{labels:?} {value}");
            last = (le, *value);
        }
    }
    assert_eq!(last, (f64::INFINITY, scrape.get("meridian_http_request_seconds_count", &[])));
    assert!(scrape.get("meridian_http_request_seconds_count", &[]) >= 20.0);
    assert!(scrape.get("meridian_http_requests_total", &[("code", "200")]) >= 20.0);
}

const PROMISED: &[(&str, &[&str])] = &[
    ("meridian_build_info", &["commit", "version"]),
    ("meridian_clients", &[]),
    ("meridian_sessions", &[]),
    ("meridian_subscriptions", &[]),
    ("meridian_routes", &[]),
    ("meridian_retained_messages", &[]),
    ("meridian_retained_bytes", &[]),
    ("meridian_queued_messages", &[]),
    ("meridian_queued_bytes", &["for"]),
    ("meridian_shard_request_bytes", &[]),
    ("meridian_group_offer_bytes", &[]),
    ("meridian_queue_oldest_age_seconds", &[]),
    ("meridian_network_connections", &["listener"]),
    ("meridian_network_connections_opened_total", &[]),
    ("meridian_network_connections_closed_total", &[]),
    ("meridian_clients_connected_total", &[]),
    ("meridian_clients_disconnected_total", &[]),
    ("meridian_connects_refused_total", &[]),
    ("meridian_connacks_early_total", &[]),
    ("meridian_disconnects_total", &["reason"]),
    ("meridian_packets_received_total", &["type"]),
    ("meridian_packets_sent_total", &["type"]),
    ("meridian_bytes_received_total", &[]),
    ("meridian_bytes_sent_total", &[]),
    ("meridian_messages_received_total", &["qos"]),
    ("meridian_messages_sent_total", &["qos"]),
    ("meridian_messages_dropped_total", &["reason"]),
    ("meridian_messages_forwarded_total", &[]),
    ("meridian_messages_forwarded_received_total", &[]),
    ("meridian_publishes_denied_total", &[]),
    ("meridian_wills_denied_total", &[]),
    ("meridian_subscribes_denied_total", &[]),
    ("meridian_publishes_refused_total", &[]),
    ("meridian_routing_shapes_free", &[]),
    ("meridian_subscribes_refused_total", &["reason"]),
    ("meridian_retained_refused_total", &[]),
    ("meridian_messages_refused_by_disk_total", &[]),
    ("meridian_messages_acknowledged_unsynced_total", &[]),
    ("meridian_messages_unsynced_limited_total", &[]),
    ("meridian_messages_unreadable_total", &[]),
    ("meridian_subacks_links_unconfirmed_total", &[]),
    ("meridian_permissions_awaited_total", &[]),
    ("meridian_publishers_blocked_total", &[]),
    ("meridian_fan_out_pauses_total", &[]),
    ("meridian_takeovers_total", &[]),
    ("meridian_claims_refused_total", &[]),
    ("meridian_sessions_refused_total", &[]),
    ("meridian_sessions_expired_total", &[]),
    ("meridian_reactor_turns_total", &["reactor"]),
    ("meridian_reactor_busy_seconds_total", &["reactor"]),
    ("meridian_reactor_turn_seconds_bucket", &["le", "reactor"]),
    ("meridian_reactor_turn_seconds_sum", &["reactor"]),
    ("meridian_reactor_mailbox_bytes", &["reactor"]),
    ("meridian_reactor_thread", &["reactor"]),
    ("meridian_reactor_moves_total", &["reactor"]),
    ("meridian_reactor_connections", &["reactor"]),
    ("meridian_accept_errors_total", &["reason"]),
    ("meridian_overload_level", &["reactor"]),
    ("meridian_publishers_paused_total", &[]),
    ("meridian_connects_shed_total", &[]),
    ("meridian_unauthenticated_connections", &[]),
    ("meridian_unauthenticated_closed_total", &["reason"]),
    ("meridian_accept_pauses_total", &["reason"]),
    ("meridian_tls_handshakes_total", &["kind"]),
    ("meridian_certificate_not_after_timestamp_seconds", &["certificate", "kind", "listener"]),
    ("meridian_watched_file_changes_total", &["result"]),
    ("meridian_watched_files_refused", &[]),
    ("meridian_http_logins_total", &["result"]),
    ("meridian_http_sessions", &[]),
    ("meridian_http_sessions_displaced_total", &[]),
    ("meridian_drain_clients_left", &["kind"]),
    ("meridian_drain_disconnected", &["kind"]),
    ("meridian_drain_stalled_seconds", &["kind"]),
    ("meridian_cluster_link_connected", &["direction", "link", "origin"]),
    ("meridian_cluster_link_filters", &["direction", "link", "origin"]),
    ("meridian_cluster_link_dropped_total", &["cause", "direction", "link", "origin"]),
    ("meridian_cluster_link_failing", &["link", "origin"]),
    ("meridian_cluster_link_filters_wanted", &["link", "origin"]),
    ("meridian_cluster_link_subscriptions_refused_total", &["link", "origin"]),
    ("meridian_cluster_link_filters_broader", &["link", "origin"]),
    ("meridian_cluster_link_messages_total", &["link", "origin"]),
    ("meridian_cluster_link_bytes_total", &["link", "origin"]),
    ("meridian_cluster_link_refused_total", &["link", "origin"]),
    ("meridian_cluster_link_postponed_total", &["link", "origin"]),
    ("meridian_cluster_link_reconnects_total", &["link", "origin"]),
    ("meridian_cluster_link_failed_attempts_total", &["link", "origin"]),
    ("meridian_cluster_link_sessions_lost_total", &["link", "origin"]),
    ("meridian_cluster_link_restores_total", &["link", "origin"]),
    ("meridian_cluster_link_stale_filters_total", &["link", "origin"]),
    ("meridian_cluster_link_queued_messages", &["link", "origin"]),
    ("meridian_cluster_link_queued_bytes", &["link", "origin"]),
    ("meridian_cluster_link_oldest_age_seconds", &["link", "origin"]),
    ("meridian_cluster_link_refused_connections_total", &["link"]),
    ("meridian_bridge_connected", &["bridge"]),
    ("meridian_bridge_failing", &["bridge"]),
    ("meridian_bridge_queued_messages", &["bridge"]),
    ("meridian_bridge_queued_bytes", &["bridge"]),
    ("meridian_bridge_oldest_age_seconds", &["bridge"]),
    ("meridian_bridge_refused_total", &["bridge"]),
    ("meridian_bridge_postponed_total", &["bridge"]),
    ("meridian_bridge_dropped_total", &["bridge", "cause"]),
    ("meridian_bridge_reconnects_total", &["bridge"]),
    ("meridian_bridge_sessions_lost_total", &["bridge"]),
    ("meridian_bridge_in_flight_messages", &["bridge", "direction"]),
    ("meridian_bridge_messages_total", &["bridge", "direction"]),
    ("meridian_bridge_bytes_total", &["bridge", "direction"]),
    ("meridian_action_failing", &["action"]),
    ("meridian_action_queued_messages", &["action"]),
    ("meridian_action_queued_bytes", &["action"]),
    ("meridian_action_oldest_age_seconds", &["action"]),
    ("meridian_action_in_flight_messages", &["action"]),
    ("meridian_action_received_total", &["action"]),
    ("meridian_action_not_selected_total", &["action"]),
    ("meridian_action_records_total", &["action"]),
    ("meridian_action_written_total", &["action"]),
    ("meridian_action_bytes_total", &["action"]),
    ("meridian_action_batches_total", &["action"]),
    ("meridian_action_retries_total", &["action"]),
    ("meridian_action_dropped_total", &["action", "reason"]),
    ("meridian_action_failures_total", &["action", "reason"]),
    ("meridian_action_diverted_total", &["action", "to"]),
    ("meridian_authentications_total", &["result"]),
    ("meridian_authenticator_outcomes_total", &["authenticator", "outcome"]),
    ("meridian_authenticator_waiting", &["authenticator"]),
    ("meridian_authenticator_deferred_total", &["authenticator"]),
    ("meridian_authenticator_seconds_total", &["authenticator"]),
    ("meridian_authenticator_seconds_max", &["authenticator"]),
    ("meridian_http_service_requests_total", &["service"]),
    ("meridian_http_service_cached_total", &["service"]),
    ("meridian_http_service_coalesced_total", &["service"]),
    ("meridian_http_service_unsendable_total", &["service"]),
    ("meridian_http_service_in_flight", &["service"]),
    ("meridian_http_service_cache_entries", &["service"]),
    ("meridian_http_service_circuit_opened_total", &["service"]),
    ("meridian_http_service_circuit", &["service"]),
    ("meridian_http_service_seconds_total", &["service"]),
    ("meridian_http_service_seconds_max", &["service"]),
    ("meridian_http_service_answers_total", &["result", "service"]),
    ("meridian_http_service_failures_total", &["reason", "service"]),
    ("meridian_jwt_tokens_total", &["result"]),
    ("meridian_jwks_keys", &[]),
    ("meridian_jwks_age_seconds", &[]),
    ("meridian_jwks_fetches_total", &["result"]),
    ("meridian_jwks_unknown_keys_total", &[]),
    ("meridian_jwks_stale_uses_total", &[]),
    ("meridian_login_failures_total", &[]),
    ("meridian_login_backoffs_total", &[]),
    ("meridian_flapping_bans_total", &["result"]),
    ("meridian_protection_entries", &[]),
    ("meridian_protection_evicted_total", &[]),
    ("meridian_config_settings_refused", &[]),
    ("meridian_config_store_records", &["table"]),
    ("meridian_config_store_revision", &[]),
    ("meridian_config_store_bytes", &[]),
    ("meridian_config_store_changes_total", &["result"]),
    ("meridian_config_store_syncs_total", &[]),
    ("meridian_config_store_compactions_total", &[]),
    ("meridian_config_store_torn_bytes_total", &[]),
    ("meridian_storage_condition", &["condition"]),
    ("meridian_storage_segments", &["state"]),
    ("meridian_storage_bytes", &[]),
    ("meridian_storage_live_bytes", &[]),
    ("meridian_storage_queue_records", &[]),
    ("meridian_storage_queue_bytes", &[]),
    ("meridian_storage_commits_total", &[]),
    ("meridian_storage_records_total", &[]),
    ("meridian_storage_written_bytes_total", &[]),
    ("meridian_storage_checkpoint_bytes_total", &[]),
    ("meridian_storage_moved_bytes_total", &[]),
    ("meridian_storage_segments_freed_total", &[]),
    ("meridian_storage_full_total", &[]),
    ("meridian_storage_sync_seconds_bucket", &["le"]),
    ("meridian_storage_commit_seconds_bucket", &["le"]),
    ("meridian_storage_recovery_seconds", &["part"]),
    ("meridian_storage_recovery_truncated_bytes", &[]),
    ("meridian_traces_active", &[]),
    ("meridian_trace_events_lost_total", &[]),
    ("meridian_spans_exported_total", &[]),
    ("meridian_spans_dropped_total", &["reason"]),
    ("meridian_messages_untraced_total", &[]),
    ("meridian_slow_subscribers", &[]),
    ("meridian_topic_messages_total", &["direction", "filter"]),
    ("meridian_http_requests_total", &["code"]),
    ("meridian_http_connections", &[]),
    ("meridian_http_rejected_total", &["reason"]),
    ("meridian_http_request_seconds_bucket", &["le"]),
    #[cfg(target_os = "linux")]
    ("process_cpu_seconds_total", &[]),
    #[cfg(target_os = "linux")]
    ("process_resident_memory_bytes", &[]),
    #[cfg(target_os = "linux")]
    ("process_open_fds", &[]),
    ("process_max_fds", &[]),
    ("process_start_time_seconds", &[]),
];

/// Further metrics of a core.
const PROMISED_OF_CORES: &[(&str, &[&str])] = &[
    ("meridian_cluster_members", &["state"]),
    ("meridian_cluster_meta_leader", &[]),
    ("meridian_cluster_meta_quorum", &[]),
    ("meridian_cluster_meta_term", &[]),
    ("meridian_cluster_meta_applied", &[]),
];

/// Further metrics of a node that belongs to a cluster.
const PROMISED_IN_CLUSTER: &[(&str, &[&str])] = &[
    ("meridian_cluster_info", &["node", "region", "role"]),
    ("meridian_cluster_acknowledging", &[]),
    ("meridian_cluster_routes_unindexed", &[]),
    ("meridian_cluster_subacks_waiting", &["for"]),
    ("meridian_cluster_messages_dropped_total", &["reason"]),
    ("meridian_cluster_subacks_overdue_total", &[]),
    ("meridian_cluster_routes_applied_total", &[]),
    ("meridian_cluster_routes_refused_total", &[]),
    ("meridian_cluster_messages_refused_total", &[]),
    ("meridian_cluster_shard_frames_refused_total", &[]),
    ("meridian_cluster_malformed_total", &[]),
    ("meridian_cluster_unauthenticated_closed_total", &[]),
    ("meridian_cluster_requests_sent_total", &[]),
    ("meridian_cluster_compressed_bytes_total", &["when"]),
    ("meridian_cluster_requests_unanswered_total", &[]),
    ("meridian_cluster_requests_received_total", &[]),
    ("meridian_cluster_requests_refused_total", &[]),
    ("meridian_cluster_node_filters", &["node"]),
    ("meridian_cluster_node_route_bytes", &["node"]),
    ("meridian_cluster_node_position", &["node"]),
    ("meridian_cluster_node_tombstones", &["node"]),
    ("meridian_cluster_node_suspect", &["node"]),
    ("meridian_link_up", &["peer"]),
    ("meridian_link_state_seconds", &["peer"]),
    ("meridian_link_connections", &["peer"]),
    ("meridian_link_connections_wanted", &["peer"]),
    ("meridian_link_round_trip_seconds", &["peer"]),
    ("meridian_link_clock_ahead_seconds", &["peer"]),
    ("meridian_link_bytes_sent_total", &["peer"]),
    ("meridian_link_bytes_received_total", &["peer"]),
    ("meridian_link_connections_opened_total", &["peer"]),
    ("meridian_link_timeouts_total", &["peer"]),
    ("meridian_link_restarts_total", &["peer"]),
    ("meridian_link_unconsumed_bytes", &["peer"]),
    ("meridian_link_unconfirmed_messages", &["peer"]),
    ("meridian_link_frames_sent_total", &["class", "peer"]),
    ("meridian_link_frames_received_total", &["class", "peer"]),
    ("meridian_link_frame_bytes_sent_total", &["class", "peer"]),
    ("meridian_link_frame_bytes_received_total", &["class", "peer"]),
    ("meridian_link_frames_retransmitted_total", &["class", "peer"]),
    ("meridian_link_frames_refused_total", &["class", "peer"]),
    ("meridian_link_frames_lost_total", &["class", "peer"]),
    ("meridian_link_stalls_total", &["class", "peer"]),
    ("meridian_link_queue_bytes", &["class", "peer"]),
    ("meridian_link_queue_frames", &["class", "peer"]),
    ("meridian_link_queue_age_seconds", &["class", "peer"]),
    ("meridian_transport_connections", &[]),
    ("meridian_transport_accepted_total", &[]),
    ("meridian_transport_accept_errors_total", &[]),
    ("meridian_transport_dialed_total", &[]),
    ("meridian_transport_tls_errors_total", &[]),
    ("meridian_transport_read_bytes_total", &[]),
    ("meridian_transport_written_bytes_total", &[]),
    ("meridian_transport_reads_total", &[]),
    ("meridian_transport_writes_total", &[]),
    ("meridian_transport_blocked_total", &[]),
    ("meridian_transport_turns_total", &[]),
    ("meridian_transport_wakeups_total", &[]),
    ("meridian_transport_commands_total", &[]),
    ("meridian_transport_bbr", &[]),
];
