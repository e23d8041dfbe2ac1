//! `/metrics`: all figures in Prometheus' format.

mod actions;
mod bridges;
mod cluster;
mod cluster_links;
mod drain;

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use auth::ServiceFigures;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use broker::Figure;
use broker::admin::{Figures, SpanFigures, TURN_BUCKETS, WorkerFigures};

use super::stats::{oldest_s, packet_name};
use crate::ask::run_blocking;
use crate::metrics::{BOUNDS, Kind, Text};
use crate::problem::Problem;
use crate::process::{ProcessFigures, unix_seconds};
use crate::state::State;
use crate::storage::{StorageCondition, StorageView};

api_routes! {
    "/metrics": get metrics;
}

/// Returns all metrics in Prometheus' text format.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/metrics", tag = "node", operation_id = "metrics", security(("token" = ["viewer"])),
    responses((status = 200, body = String, content_type = "text/plain; version=0.0.4"))))]
async fn metrics(state: State) -> Result<impl IntoResponse, Problem> {
    // A change of the configuration store may be waiting for the disk.
    let shared = state.clone();
    let kept = run_blocking(move || shared.keys.configstore()).await?;
    let shared = state.clone();
    let stored = run_blocking(move || shared.storage.as_ref().map(|storage| storage.view())).await?;
    let figures = state.admin.figures();
    let mut text = Text::default();
    let build = [("version", state.node.version), ("commit", state.node.commit)];
    text.family("meridian_build_info", Kind::Gauge, "Version and commit of the program; always 1.")
        .sample(&build, 1.0);
    gauges(&mut text, &figures);
    listeners(&mut text, &state);
    counters(&mut text, &figures);
    packets(&mut text, &figures);
    reactors(&mut text, &figures);
    certificates(&mut text, &state);
    watched_files(&mut text, &state);
    authentications(&mut text, &state);
    authorizations(&mut text, &state);
    links(&mut text, &state);
    tokens(&mut text, &state);
    protection(&mut text, &state);
    services(&mut text, &state);
    configstore(&mut text, &kept);
    let help = "Settings that the cluster agrees on and this node cannot apply.";
    text.one("meridian_config_settings_refused", Kind::Gauge, help, state.configuration.refused() as f64);
    if let Some(stored) = &stored {
        storage(&mut text, stored);
    }
    if let Some(view) = state.cluster.as_ref().and_then(|cluster| cluster.view()) {
        let led: Vec<_> = figures.workers.iter().flat_map(|worker| &worker.shards).collect();
        cluster::cluster(&mut text, &view, &led);
    }
    drain::drain(&mut text, state.drains.view().as_ref());
    bridges::bridges(&mut text, &state.bridges.views());
    actions::actions(&mut text, &state.actions.views());
    cluster_links::cluster_links(&mut text, &state.links.views());
    topics(&mut text, &state);
    http(&mut text, &state);
    process(&mut text, &state);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.into_string()))
}

fn gauges(text: &mut Text, figures: &Figures) {
    let mut gauge = |name: &str, help: &str, value: f64| text.one(name, Kind::Gauge, help, value);
    let total = |figure: fn(&WorkerFigures) -> u64| figures.total(figure) as f64;
    gauge("meridian_clients", "Connected clients.", total(|worker| worker.connections));
    gauge("meridian_sessions", "Durable sessions.", total(|worker| worker.sessions));
    gauge(
        "meridian_subscriptions",
        "Subscriptions of all clients and sessions.",
        figures.subscriptions() as f64,
    );
    gauge(
        "meridian_routes",
        "Pairs of Topic Filter and destination in the routing index.",
        figures.routes as f64,
    );
    gauge(
        "meridian_routing_shapes_free",
        "Shapes of Topic Filters that the node can still add before it reaches routing.shapes_max.",
        figures.shapes_free as f64,
    );
    gauge("meridian_retained_messages", "Retained messages.", total(|worker| worker.retained_messages));
    gauge("meridian_retained_bytes", "Bytes of retained messages.", total(|worker| worker.retained_bytes));
    gauge(
        "meridian_queued_messages",
        "Messages that wait for clients.",
        total(|worker| worker.waiting_messages),
    );
    let oldest = oldest_s(figures);
    gauge("meridian_queue_oldest_age_seconds", "Age of the oldest message that waits for a client.", oldest);
    gauge("meridian_traces_active", "Active traces.", figures.traces as f64);
    gauge("meridian_slow_subscribers", "Clients with recent slow deliveries.", total(|worker| worker.slow));
    let (all, absent) = (total(|worker| worker.queued_bytes), total(|worker| worker.offline_bytes));
    let help = "Bytes of messages that wait, including those in flight to durable sessions.";
    let mut family = text.family("meridian_queued_bytes", Kind::Gauge, help);
    family.sample(&[("for", "connected")], (all - absent).max(0.0));
    family.sample(&[("for", "offline")], absent);
    let help = "Bytes of requests to shards of the cluster that are not answered.";
    text.one("meridian_shard_request_bytes", Kind::Gauge, help, total(|worker| worker.request_bytes));
    let help = "Bytes of messages that wait for the answers of members of shared groups.";
    text.one("meridian_group_offer_bytes", Kind::Gauge, help, total(|worker| worker.offer_bytes));
    let help = "Trace events that were dropped because there were too many.";
    text.one("meridian_trace_events_lost_total", Kind::Counter, help, figures.trace_events_lost as f64);
    let SpanFigures { exported, dropped, lost, untraced } = figures.spans;
    let help = "Spans of messages that the collector has accepted.";
    text.one("meridian_spans_exported_total", Kind::Counter, help, exported as f64);
    let help = "Spans of messages that the collector did not get.";
    let mut family = text.family("meridian_spans_dropped_total", Kind::Counter, help);
    family.sample(&[("reason", "queue_full")], dropped as f64);
    family.sample(&[("reason", "collector")], lost as f64);
    let help = "Messages with a sampled traceparent that have no spans because of otel.messages_per_second.";
    text.one("meridian_messages_untraced_total", Kind::Counter, help, untraced as f64);
}

fn listeners(text: &mut Text, state: &State) {
    let help = "Network connections by listener, including those without a client.";
    let mut family = text.family("meridian_network_connections", Kind::Gauge, help);
    // A listener on a name has several addresses and one count.
    let mut seen: Vec<&str> = Vec::new();
    for listener in &state.node.listeners {
        if !seen.contains(&listener.name.as_str()) {
            seen.push(&listener.name);
            family.sample(&[("listener", &listener.name)], (listener.connections)() as f64);
        }
    }
}

/// Writes every counter of the broker, one family after the other.
fn counters(text: &mut Text, figures: &Figures) {
    let (counters, store, _) = figures.counters();
    let each: Vec<Figure> = counters.each().chain(store.each()).collect();
    for (index, first) in each.iter().enumerate() {
        if each[..index].iter().any(|earlier| earlier.family == first.family) {
            continue;
        }
        let (kind, suffix) = if first.gauge { (Kind::Gauge, "") } else { (Kind::Counter, "_total") };
        let help = help(first.family).unwrap_or(first.help);
        let mut family = text.family(&format!("meridian_{}{suffix}", first.family), kind, help);
        // One label may have several counters: one for connections, one for sessions.
        let mut samples: Vec<(Option<(&str, &str)>, u64)> = Vec::new();
        for figure in each.iter().filter(|figure| figure.family == first.family) {
            match samples.iter_mut().find(|(label, _)| *label == figure.label) {
                Some((_, value)) => *value += figure.value,
                None => samples.push((figure.label, figure.value)),
            }
        }
        for (label, value) in samples {
            family.sample(label.as_slice(), value as f64);
        }
    }
}

/// Returns the help of a family that has several counters, each with a help of its own.
fn help(family: &str) -> Option<&'static str> {
    Some(match family {
        "disconnects" => "Connections closed by the broker, by reason.",
        "messages_received" => "PUBLISH packets received, by QoS.",
        "messages_sent" => "PUBLISH packets sent, by QoS.",
        "messages_dropped" => "Messages that were not delivered to one of their receivers, by reason.",
        _ => return None,
    })
}

fn packets(text: &mut Text, figures: &Figures) {
    let (_, _, packets) = figures.counters();
    let rows: Vec<_> = packets.each().collect();
    let mut family =
        text.family("meridian_packets_received_total", Kind::Counter, "Packets received, by type.");
    for (packet, received, _) in &rows {
        family.sample(&[("type", packet_name(*packet))], *received as f64);
    }
    let mut family = text.family("meridian_packets_sent_total", Kind::Counter, "Packets sent, by type.");
    for (packet, _, sent) in &rows {
        family.sample(&[("type", packet_name(*packet))], *sent as f64);
    }
}

fn reactors(text: &mut Text, figures: &Figures) {
    let rows: Vec<(String, &WorkerFigures)> =
        figures.workers.iter().enumerate().map(|(index, worker)| (index.to_string(), worker)).collect();
    let mut each = |name: &str, kind, help: &str, figure: fn(&WorkerFigures) -> f64| {
        let mut family = text.family(name, kind, help);
        rows.iter().for_each(|(reactor, worker)| family.sample(&[("reactor", reactor)], figure(worker)));
    };
    each("meridian_reactor_turns_total", Kind::Counter, "Turns of the reactor's loop.", |worker| {
        worker.reactor.turns as f64
    });
    let help = "Time that the reactor spent in turns, without the time that it waited.";
    each("meridian_reactor_busy_seconds_total", Kind::Counter, help, |worker| {
        worker.reactor.busy.as_secs_f64()
    });
    each(
        "meridian_reactor_mailbox_bytes",
        Kind::Gauge,
        "Size of the commands in the reactor's mailbox.",
        |worker| worker.reactor.mailbox_bytes as f64,
    );
    let help = "Number of the thread that runs the reactor. Reactors of one number share a thread.";
    each("meridian_reactor_thread", Kind::Gauge, help, |worker| f64::from(worker.reactor.thread));
    let help = "Times that another thread took over the reactor because of its load.";
    each("meridian_reactor_moves_total", Kind::Counter, help, |worker| worker.reactor.moves as f64);
    let help = "Overload level of the reactor: 0 refuses nothing, 3 refuses most.";
    each("meridian_overload_level", Kind::Gauge, help, |worker| f64::from(worker.overload));
    each("meridian_reactor_connections", Kind::Gauge, "Clients of the reactor.", |worker| {
        worker.connections as f64
    });

    // The last bucket holds all longer turns, so it has no upper end.
    let bounds: Vec<f64> = (0..TURN_BUCKETS - 1).map(|power| (1_u64 << power) as f64 / 1e6).collect();
    let mut family = text.family("meridian_reactor_turn_seconds", Kind::Histogram, "Duration of turns.");
    for (reactor, worker) in &rows {
        let sum = worker.reactor.busy.as_secs_f64();
        family.histogram(&[("reactor", reactor)], &bounds, &worker.reactor.turn_us, sum);
    }
    let errors = |of: fn(&broker::admin::AcceptErrors) -> u64| {
        figures.total(|worker| of(&worker.reactor.accept_errors)) as f64
    };
    let help = "Connections that could not be accepted, by reason.";
    let mut family = text.family("meridian_accept_errors_total", Kind::Counter, help);
    family.sample(&[("reason", "descriptors")], errors(|errors| errors.descriptors));
    family.sample(&[("reason", "limit")], errors(|errors| errors.limit));
    family.sample(&[("reason", "other")], errors(|errors| errors.other));
    doors(text, figures);
}

fn doors(text: &mut Text, figures: &Figures) {
    let sum = |of: fn(&broker::admin::AcceptFigures) -> u64| {
        figures.total(|worker| of(&worker.reactor.door)) as f64
    };
    let help = "Unauthenticated connections: those whose CONNECT has not succeeded yet.";
    text.one("meridian_unauthenticated_connections", Kind::Gauge, help, sum(|door| door.half_open));
    let help = "Unauthenticated connections that were closed, by reason.";
    let mut family = text.family("meridian_unauthenticated_closed_total", Kind::Counter, help);
    family.sample(&[("reason", "address")], sum(|door| door.closed_address));
    family.sample(&[("reason", "timeout")], sum(|door| door.closed_timeout));
    let help = "Times that the node paused accepting connections, by reason.";
    let mut family = text.family("meridian_accept_pauses_total", Kind::Counter, help);
    family.sample(&[("reason", "unauthenticated")], sum(|door| door.waits_half_open));
    family.sample(&[("reason", "rate")], sum(|door| door.waits_rate));
    family.sample(&[("reason", "overload")], sum(|door| door.waits_overload));
    let help = "Times that reading of a connection paused for a second because it sent most while the node \
        was overloaded.";
    text.one("meridian_publishers_paused_total", Kind::Counter, help, sum(|door| door.noisy_paused));
    let help = "Completed TLS handshakes, by kind.";
    let mut family = text.family("meridian_tls_handshakes_total", Kind::Counter, help);
    family.sample(&[("kind", "full")], sum(|door| door.handshakes_full));
    family.sample(&[("kind", "resumed")], sum(|door| door.handshakes_resumed));
}

/// Writes the expiries of certificates. The family has no sample without TLS.
fn certificates(text: &mut Text, state: &State) {
    let help = "Expiry of a certificate in use, or time at which the next revocation list is due, in seconds \
        since 1970; of a file with several, the first.";
    let mut family = text.family("meridian_certificate_not_after_timestamp_seconds", Kind::Gauge, help);
    let expiries = (state.node.expiries)();
    let mut seen = HashSet::new();
    for (listener, expiry) in &expiries {
        let (kind, file) = (expiry.kind.name(), expiry.file.to_string_lossy());
        // The settings allow a listener whose name is `http`, as is that of the API.
        if seen.insert((listener, kind, file.clone())) {
            let labels = [("listener", listener.as_str()), ("kind", kind), ("certificate", &*file)];
            family.sample(&labels, expiry.not_after as f64);
        }
    }
}

fn watched_files(text: &mut Text, state: &State) {
    let watched = (state.node.watched)();
    let help = "Changes of watched files (node.watch_files), by result.";
    let mut family = text.family("meridian_watched_file_changes_total", Kind::Counter, help);
    family.sample(&[("result", "used")], watched.used as f64);
    family.sample(&[("result", "refused")], watched.refusals as f64);
    let help = "Parts of the node whose changed files cannot be used now; the previous contents stay in use.";
    text.one("meridian_watched_files_refused", Kind::Gauge, help, watched.refused.len() as f64);
}

fn authentications(text: &mut Text, state: &State) {
    let figures = state.guard.figures();
    let help = "Authentications of clients, by result.";
    let mut family = text.family("meridian_authentications_total", Kind::Counter, help);
    for (result, value) in [
        ("accepted", figures.accepted),
        ("cached", figures.remembered),
        ("refused", figures.refused),
        ("busy", figures.busy),
        ("anonymous_refused", figures.anonymous_refused),
        ("banned", figures.banned),
        ("failed", figures.failed),
        ("timed_out", figures.timed_out),
        ("backed_off", figures.backed_off),
        ("rate_limited", figures.rate_limited),
        ("mountpoint_refused", figures.mountpoint_refused),
    ] {
        family.sample(&[("result", result)], value as f64);
    }
}

fn authorizations(text: &mut Text, state: &State) {
    let help = "Authorization decisions, by source; answers that reactors cache are not counted.";
    let mut family = text.family("meridian_authorizations_total", Kind::Counter, help);
    for figures in state.guard.decisions() {
        let results = [("allowed", figures.allowed), ("denied", figures.denied), ("failed", figures.failed)];
        for (result, value) in results {
            family.sample(&[("by", figures.by), ("result", result)], value as f64);
        }
    }
}

/// Writes a sample for each link of the authentication chain; SCRAM counts as one.
fn links(text: &mut Text, state: &State) {
    let links = state.guard.link_figures();
    let help = "Answers of the links of the authentication chain.";
    let mut family = text.family("meridian_authenticator_outcomes_total", Kind::Counter, help);
    for link in &links {
        for (outcome, value) in [
            ("accepted", link.accepted),
            ("refused", link.refused),
            ("not_mine", link.not_mine),
            ("failed", link.failed),
            ("timed_out", link.timed_out),
            ("busy", link.busy),
        ] {
            family.sample(&[("authenticator", link.name), ("outcome", outcome)], value as f64);
        }
    }
    let help = "Clients that wait for a link of the authentication chain or its threads.";
    let mut family = text.family("meridian_authenticator_waiting", Kind::Gauge, help);
    links.iter().for_each(|link| family.sample(&[("authenticator", link.name)], link.waiting as f64));
    let help = "Questions that a link could not answer at once.";
    let mut family = text.family("meridian_authenticator_deferred_total", Kind::Counter, help);
    links.iter().for_each(|link| family.sample(&[("authenticator", link.name)], link.works as f64));
    let help = "Total time that a link worked on its answers, in seconds.";
    let mut family = text.family("meridian_authenticator_seconds_total", Kind::Counter, help);
    links
        .iter()
        .for_each(|link| family.sample(&[("authenticator", link.name)], link.duration_sum.as_secs_f64()));
    let help = "Longest time that a link worked on an answer since the start, in seconds.";
    let mut family = text.family("meridian_authenticator_seconds_max", Kind::Gauge, help);
    links
        .iter()
        .for_each(|link| family.sample(&[("authenticator", link.name)], link.duration_max.as_secs_f64()));
}

/// All values are 0 where no tokens are configured, or their keys are not in a JWK Set.
fn tokens(text: &mut Text, state: &State) {
    let figures = state.guard.tokens().map(|tokens| tokens.figures()).unwrap_or_default();
    let help = "JSON Web Tokens that clients presented, by result.";
    let mut family = text.family("meridian_jwt_tokens_total", Kind::Counter, help);
    for (result, value) in [
        ("accepted", figures.accepted),
        ("malformed", figures.malformed),
        ("algorithm", figures.algorithm),
        ("key", figures.key),
        ("signature", figures.signature),
        ("time", figures.time),
        ("claims", figures.claims),
        ("unavailable", figures.unavailable),
    ] {
        family.sample(&[("result", result)], value as f64);
    }
    let jwks = figures.jwks.unwrap_or_default();
    let help = "Keys of the JWK Set in use.";
    text.one("meridian_jwks_keys", Kind::Gauge, help, jwks.keys as f64);
    let help = "Time since the last successful fetch of the JWK Set; 0 before the first one.";
    let age = jwks.age.map_or(0.0, |age| age.as_secs_f64());
    text.one("meridian_jwks_age_seconds", Kind::Gauge, help, age);
    let help = "Fetches of the JWK Set, by result.";
    let mut family = text.family("meridian_jwks_fetches_total", Kind::Counter, help);
    family.sample(&[("result", "fetched")], jwks.fetched as f64);
    family.sample(&[("result", "failed")], jwks.failures as f64);
    let help = "Tokens whose key was not in the JWK Set.";
    text.one("meridian_jwks_unknown_keys_total", Kind::Counter, help, jwks.unknown_key_ids as f64);
    let help = "Tokens that were verified with keys whose last fetch had failed.";
    text.one("meridian_jwks_stale_uses_total", Kind::Counter, help, jwks.with_old_keys as f64);
}

fn protection(text: &mut Text, state: &State) {
    let figures = state.guard.protection_figures();
    let help = "Failed logins that were counted for an address or a user name.";
    text.one("meridian_login_failures_total", Kind::Counter, help, figures.failures as f64);
    let help = "Times that an address, a user name or a pair of both had to wait after failed logins.";
    text.one("meridian_login_backoffs_total", Kind::Counter, help, figures.backoffs as f64);
    let help = "Logins that waited before their check because their user name had too many failed ones.";
    text.one("meridian_login_delays_total", Kind::Counter, help, figures.delayed as f64);
    let help = "Bans of Client Identifiers that connected and disconnected too often.";
    let mut family = text.family("meridian_flapping_bans_total", Kind::Counter, help);
    family.sample(&[("result", "made")], figures.flapping_banned as f64);
    family.sample(&[("result", "failed")], figures.flapping_failed as f64);
    let help = "Addresses, user names and Client Identifiers that login protection tracks.";
    text.one("meridian_protection_entries", Kind::Gauge, help, figures.entries as f64);
    let help = "Tracked entries of login protection that were discarded because there were too many.";
    text.one("meridian_protection_evicted_total", Kind::Counter, help, figures.evicted as f64);
}

/// Writes the figures of the HTTP services of authentication and authorisation.
fn services(text: &mut Text, state: &State) {
    let services = state.guard.http_services().figures();
    let mut simple = |name: &str, kind: Kind, help: &str, value: fn(&ServiceFigures) -> f64| {
        let mut family = text.family(name, kind, help);
        for (service, figures) in &services {
            family.sample(&[("service", service)], value(figures));
        }
    };
    let help = "Requests to the HTTP services of authentication and authorization.";
    simple("meridian_http_service_requests_total", Kind::Counter, help, |figures| figures.requests as f64);
    let help = "Questions to HTTP services that were answered from the cache.";
    simple("meridian_http_service_cached_total", Kind::Counter, help, |figures| figures.cached as f64);
    let help = "Questions to HTTP services that waited for the answer to an identical one.";
    simple("meridian_http_service_coalesced_total", Kind::Counter, help, |figures| figures.joined as f64);
    let help = "Questions that were refused without a request because a name does not fit the template of \
        the HTTP service.";
    simple("meridian_http_service_unsendable_total", Kind::Counter, help, |figures| figures.unaskable as f64);
    let help = "Current requests to HTTP services.";
    simple("meridian_http_service_in_flight", Kind::Gauge, help, |figures| figures.in_flight as f64);
    let help = "Answers of HTTP services in the cache.";
    simple("meridian_http_service_cache_entries", Kind::Gauge, help, |figures| figures.remembered as f64);
    let help = "Times that the circuit breaker of an HTTP service opened.";
    simple("meridian_http_service_circuit_opened_total", Kind::Counter, help, |figures| {
        figures.opened as f64
    });
    let help =
        "State of the circuit breaker of an HTTP service: 0 closed, 1 half-open, 2 open (no requests).";
    simple("meridian_http_service_circuit", Kind::Gauge, help, |figures| figures.circuit as u8 as f64);
    let help = "Total duration of requests to HTTP services.";
    simple("meridian_http_service_seconds_total", Kind::Counter, help, |figures| figures.took.as_secs_f64());
    let help = "Duration of the longest request to an HTTP service.";
    simple("meridian_http_service_seconds_max", Kind::Gauge, help, |figures| figures.took_max.as_secs_f64());

    let help = "Answers of HTTP services, by result.";
    let mut family = text.family("meridian_http_service_answers_total", Kind::Counter, help);
    for (service, figures) in &services {
        for (result, value) in
            [("allow", figures.allowed), ("deny", figures.denied), ("ignore", figures.ignored)]
        {
            family.sample(&[("service", service), ("result", result)], value as f64);
        }
    }
    let help = "Questions that were refused because an HTTP service did not answer, by reason.";
    let mut family = text.family("meridian_http_service_failures_total", Kind::Counter, help);
    for (service, figures) in &services {
        for (reason, value) in figures.failed.by_kind() {
            family.sample(&[("service", service), ("reason", reason)], value as f64);
        }
    }
}

/// Writes the figures of users, access rules, bans, API keys and settings of the cluster, and of their file.
fn configstore(text: &mut Text, figures: &configstore::Figures) {
    let help = "Records of the configuration store: users, access rules, bans, API keys and settings of the \
        cluster.";
    let mut family = text.family("meridian_config_store_records", Kind::Gauge, help);
    figures.records.iter().for_each(|(table, records)| family.sample(&[("table", table)], *records as f64));
    let help = "Revision of the configuration store; it is the same on all nodes of a cluster that are up to \
        date.";
    text.one("meridian_config_store_revision", Kind::Gauge, help, figures.revision as f64);
    let help = "Size of the configuration store's file.";
    text.one("meridian_config_store_bytes", Kind::Gauge, help, figures.wal_bytes as f64);
    let help = "Changes of the configuration store, by result.";
    let mut family = text.family("meridian_config_store_changes_total", Kind::Counter, help);
    family.sample(&[("result", "accepted")], figures.accepted as f64);
    family.sample(&[("result", "refused")], figures.refused as f64);
    family.sample(&[("result", "failed")], figures.failed as f64);
    let help = "Syncs of the configuration store to the disk.";
    text.one("meridian_config_store_syncs_total", Kind::Counter, help, figures.syncs as f64);
    let help = "Compactions of the configuration store's file.";
    text.one("meridian_config_store_compactions_total", Kind::Counter, help, figures.compactions as f64);
    let help = "Bytes of incomplete changes that were cut off the configuration store's file.";
    text.one("meridian_config_store_torn_bytes_total", Kind::Counter, help, figures.torn_bytes as f64);
}

/// Left out where nothing is kept on disk.
fn storage(text: &mut Text, view: &StorageView) {
    let help = "Condition of the disk: 1 for the present one.";
    let mut family = text.family("meridian_storage_condition", Kind::Gauge, help);
    for condition in StorageCondition::ALL {
        let is = f64::from(u8::from(condition.name() == view.state));
        family.sample(&[("condition", condition.name())], is);
    }
    let help = "Segments of the log, by state: with records, kept ready, being freed.";
    let mut family = text.family("meridian_storage_segments", Kind::Gauge, help);
    let used = view.segments.saturating_sub(view.vacating);
    for (state, count) in [("used", used), ("spare", view.spares), ("vacating", view.vacating)] {
        family.sample(&[("state", state)], count as f64);
    }
    let rows = [
        ("bytes", Kind::Gauge, "Bytes of the log's segments.", view.bytes),
        ("live_bytes", Kind::Gauge, "Bytes of the log that are still needed.", view.live_bytes),
        ("queue_records", Kind::Gauge, "Records that wait for the disk.", view.queue_records),
        ("queue_bytes", Kind::Gauge, "Bytes of records that wait for the disk.", view.queue_bytes),
        ("commits_total", Kind::Counter, "Group commits of the log.", view.commits),
        ("records_total", Kind::Counter, "Records that were made durable.", view.records),
        ("written_bytes_total", Kind::Counter, "Bytes written into the log.", view.bytes_written),
        (
            "checkpoint_bytes_total",
            Kind::Counter,
            "Written bytes that were parts of checkpoints.",
            view.checkpoint_bytes,
        ),
        (
            "moved_bytes_total",
            Kind::Counter,
            "Written bytes that were moved out of freed segments.",
            view.moved_bytes,
        ),
        ("segments_freed_total", Kind::Counter, "Segments that were freed.", view.freed),
        ("full_total", Kind::Counter, "Times that the disk became full.", view.full_count),
    ];
    for (name, kind, help, value) in rows {
        text.one(&format!("meridian_storage_{name}"), kind, help, value as f64);
    }
    let rows = [
        ("meridian_storage_sync_seconds", "Duration of syncs of the log.", &view.sync),
        ("meridian_storage_commit_seconds", "Duration of commits of the log, including syncs.", &view.commit),
    ];
    for (name, help, durations) in rows {
        let (bounds, counts) = &durations.buckets;
        text.family(name, Kind::Histogram, help).histogram(&[], bounds, counts, durations.sum_s);
    }
    let help = "Duration of the recovery of the log at the last start, by part.";
    let mut family = text.family("meridian_storage_recovery_seconds", Kind::Gauge, help);
    family.sample(&[("part", "read")], view.recovery.read_s);
    family.sample(&[("part", "restored")], view.recovery.restored_s);
    let help = "Bytes of an incomplete last commit that the last start cut off.";
    text.one(
        "meridian_storage_recovery_truncated_bytes",
        Kind::Gauge,
        help,
        view.recovery.truncated_bytes as f64,
    );
}

/// Writes the figures of the filters that an operator chose: at most 64.
fn topics(text: &mut Text, state: &State) {
    let help = "Messages on topics that match a filter of topic metrics, since it was added.";
    let mut family = text.family("meridian_topic_messages_total", Kind::Counter, help);
    for watched in state.admin.watched() {
        let rows = [
            ("received", watched.received.messages()),
            ("sent", watched.sent.messages()),
            ("dropped", watched.dropped),
        ];
        for (direction, value) in rows {
            family.sample(&[("filter", &watched.filter), ("direction", direction)], value as f64);
        }
    }
}

fn http(text: &mut Text, state: &State) {
    let metrics = &state.metrics;
    let mut family =
        text.family("meridian_http_requests_total", Kind::Counter, "HTTP requests answered, by status.");
    for (code, count) in metrics.codes() {
        family.sample(&[("code", &code.to_string())], count as f64);
    }
    let open = metrics.connections.load(Ordering::Relaxed) as f64;
    text.one("meridian_http_connections", Kind::Gauge, "HTTP connections.", open);
    let streams = state.streams.running() as f64;
    text.one("meridian_http_streams", Kind::Gauge, "Open streams of the log and of traces.", streams);
    let help = "HTTP requests refused before their handler ran, by reason.";
    let mut family = text.family("meridian_http_rejected_total", Kind::Counter, help);
    for (reason, count) in metrics.rejected.each() {
        family.sample(&[("reason", reason)], count as f64);
    }
    let help = "Logins with a name and a password, by result.";
    let mut family = text.family("meridian_http_logins_total", Kind::Counter, help);
    for (result, count) in metrics.logins.each() {
        family.sample(&[("result", result)], count as f64);
    }
    let sessions = state.keys.sessions();
    let help = "Sessions of accounts that this node knows.";
    let count: usize = sessions.counts().values().sum();
    text.one("meridian_http_sessions", Kind::Gauge, help, count as f64);
    let help = "Sessions that a login on this node ended because there were too many (http.sessions_per_account, \
        http.sessions_max).";
    text.one("meridian_http_sessions_displaced_total", Kind::Counter, help, sessions.displaced() as f64);
    let (counts, sum) = metrics.seconds().read();
    let help = "Time from the end of a request's header to the beginning of its answer.";
    let mut family = text.family("meridian_http_request_seconds", Kind::Histogram, help);
    family.histogram(&[], &BOUNDS, &counts, sum);
    let help = "Entries of the audit log that could not be written to its file.";
    text.one("meridian_audit_entries_lost_total", Kind::Counter, help, state.audit.failed() as f64);
    let help = "Refused attempts that were not written to the audit log because one key and address had too \
        many.";
    text.one("meridian_audit_refused_unwritten_total", Kind::Counter, help, state.audit.unwritten() as f64);
}

/// Figures that the system does not provide are left out.
fn process(text: &mut Text, state: &State) {
    let ProcessFigures { cpu_s, resident_bytes, open_fds, max_fds, threads: _ } = ProcessFigures::read();
    if let Some(seconds) = cpu_s {
        text.one("process_cpu_seconds_total", Kind::Counter, "Processor time used.", seconds);
    }
    let whole = |number: Option<u64>| number.map(|number| number as f64);
    let rows = [
        ("process_resident_memory_bytes", "Resident memory of the process.", whole(resident_bytes)),
        ("process_open_fds", "Open file descriptors.", whole(open_fds)),
        ("process_max_fds", "Maximum number of open file descriptors.", whole(max_fds)),
        (
            "process_start_time_seconds",
            "Start time of the node, in seconds since 1970.",
            Some(unix_seconds(state.admin.started())),
        ),
    ];
    for (name, help, value) in rows {
        if let Some(value) = value {
            text.one(name, Kind::Gauge, help, value);
        }
    }
}
