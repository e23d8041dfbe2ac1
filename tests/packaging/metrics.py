"""List of all metrics: type, labels, and the values of labels with fixed values. The tests compare it with a running node, and
with the dashboard, the alert rules and the pages that use metrics."""

ANY = None  # a label with values that only the running node knows
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
DROPPED = {
    "slow_reader", "queue_full", "expired", "packet_too_large", "not_readable", "overload", "session_ended", "no_group_member",
    "malformed",
}  # fmt: skip
LANES = {"control", "claims", "agreement", "requests", "routes", "assured", "best_effort"}
QOS = {"0", "1", "2"}
PACKETS = {
    "connect", "connack", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe", "suback", "unsubscribe", "unsuback",
    "pingreq", "pingresp", "disconnect", "auth",
}  # fmt: skip

METRICS = {
    "meridian_build_info": (GAUGE, {"version": ANY, "commit": ANY}),
    "meridian_clients": (GAUGE, {}),
    "meridian_sessions": (GAUGE, {}),
    "meridian_subscriptions": (GAUGE, {}),
    "meridian_routes": (GAUGE, {}),
    "meridian_retained_messages": (GAUGE, {}),
    "meridian_retained_bytes": (GAUGE, {}),
    "meridian_queued_messages": (GAUGE, {}),
    "meridian_queued_bytes": (GAUGE, {"for": {"connected", "offline"}}),
    "meridian_shard_request_bytes": (GAUGE, {}),
    "meridian_group_offer_bytes": (GAUGE, {}),
    "meridian_session_queued_messages": (GAUGE, {}),
    "meridian_session_queued_bytes": (GAUGE, {}),
    "meridian_queue_oldest_age_seconds": (GAUGE, {}),
    "meridian_network_connections": (GAUGE, {"listener": ANY}),
    "meridian_network_connections_opened_total": (COUNTER, {}),
    "meridian_network_connections_closed_total": (COUNTER, {}),
    "meridian_clients_connected_total": (COUNTER, {}),
    "meridian_clients_disconnected_total": (COUNTER, {}),
    "meridian_connects_refused_total": (COUNTER, {}),
    "meridian_connacks_early_total": (COUNTER, {}),
    "meridian_login_delays_total": (COUNTER, {}),
    "meridian_quota_refusals_total": (COUNTER, {"resource": {"connections", "retained", "session_bytes", "sessions", "will_bytes"}}),
    "meridian_retained_scans_resumed_total": (COUNTER, {}),
    "meridian_retained_scanned_total": (COUNTER, {}),
    "meridian_retained_throttled_total": (COUNTER, {}),
    "meridian_subscribes_refused_total": (COUNTER, {"reason": {"shapes", "shared"}}),
    "meridian_routing_shapes_free": (GAUGE, {}),
    "meridian_disconnects_total": (
        COUNTER,
        {
            "reason": {
                "protocol_error", "keep_alive_timeout", "connect_timeout", "taken_over", "slow_reader", "administrative",
                "admission_expired", "packet_timeout", "routes_overdue",
            }
        },
    ),  # fmt: skip
    "meridian_packets_received_total": (COUNTER, {"type": PACKETS}),
    "meridian_packets_sent_total": (COUNTER, {"type": PACKETS}),
    "meridian_bytes_received_total": (COUNTER, {}),
    "meridian_bytes_sent_total": (COUNTER, {}),
    "meridian_messages_received_total": (COUNTER, {"qos": QOS}),
    "meridian_messages_sent_total": (COUNTER, {"qos": QOS}),
    "meridian_messages_dropped_total": (COUNTER, {"reason": DROPPED}),
    "meridian_messages_forwarded_total": (COUNTER, {}),
    "meridian_messages_forwarded_received_total": (COUNTER, {}),
    "meridian_publishes_denied_total": (COUNTER, {}),
    "meridian_wills_denied_total": (COUNTER, {}),
    "meridian_subscribes_denied_total": (COUNTER, {}),
    "meridian_publishes_refused_total": (COUNTER, {}),
    "meridian_retained_refused_total": (COUNTER, {}),
    "meridian_messages_refused_by_disk_total": (COUNTER, {}),
    "meridian_messages_acknowledged_unsynced_total": (COUNTER, {}),
    "meridian_messages_unsynced_limited_total": (COUNTER, {}),
    "meridian_messages_unreadable_total": (COUNTER, {}),
    "meridian_permissions_awaited_total": (COUNTER, {}),
    "meridian_publishers_blocked_total": (COUNTER, {}),
    "meridian_fan_out_pauses_total": (COUNTER, {}),
    "meridian_takeovers_total": (COUNTER, {}),
    "meridian_claims_refused_total": (COUNTER, {}),
    "meridian_sessions_refused_total": (COUNTER, {}),
    "meridian_sessions_expired_total": (COUNTER, {}),
    "meridian_sessions_kicked_total": (COUNTER, {}),
    "meridian_subscriptions_added_total": (COUNTER, {}),
    "meridian_subscriptions_removed_total": (COUNTER, {}),
    "meridian_reactor_turns_total": (COUNTER, {"reactor": ANY}),
    "meridian_reactor_busy_seconds_total": (COUNTER, {"reactor": ANY}),
    "meridian_reactor_turn_seconds": (HISTOGRAM, {"reactor": ANY}),
    "meridian_reactor_mailbox_bytes": (GAUGE, {"reactor": ANY}),
    "meridian_reactor_thread": (GAUGE, {"reactor": ANY}),
    "meridian_reactor_moves_total": (COUNTER, {"reactor": ANY}),
    "meridian_reactor_connections": (GAUGE, {"reactor": ANY}),
    "meridian_accept_errors_total": (COUNTER, {"reason": {"descriptors", "limit", "other"}}),
    "meridian_overload_level": (GAUGE, {"reactor": ANY}),
    "meridian_publishers_paused_total": (COUNTER, {}),
    "meridian_connects_shed_total": (COUNTER, {}),
    "meridian_unauthenticated_connections": (GAUGE, {}),
    "meridian_unauthenticated_closed_total": (COUNTER, {"reason": {"address", "timeout"}}),
    "meridian_accept_pauses_total": (COUNTER, {"reason": {"unauthenticated", "rate", "overload"}}),
    "meridian_tls_handshakes_total": (COUNTER, {"kind": {"full", "resumed"}}),
    "meridian_certificate_not_after_timestamp_seconds": (
        GAUGE,
        {"listener": ANY, "kind": {"server", "client_ca", "client_crl"}, "certificate": ANY},
    ),
    "meridian_authentications_total": (
        COUNTER,
        {
            "result": {
                "accepted", "cached", "refused", "busy", "anonymous_refused", "banned",
                "failed", "timed_out", "backed_off", "rate_limited", "mountpoint_refused",
            }
        },
    ),
    "meridian_authorizations_total": (
        COUNTER,
        {
            "by": {"superuser", "token", "rules", "database", "acl_file", "http", "no_match"},
            "result": {"allowed", "denied", "failed"},
        },
    ),
    "meridian_authenticator_outcomes_total": (
        COUNTER,
        {"authenticator": ANY, "outcome": {"accepted", "refused", "not_mine", "failed", "timed_out", "busy"}},
    ),
    "meridian_authenticator_waiting": (GAUGE, {"authenticator": ANY}),
    "meridian_authenticator_deferred_total": (COUNTER, {"authenticator": ANY}),
    "meridian_authenticator_seconds_total": (COUNTER, {"authenticator": ANY}),
    "meridian_authenticator_seconds_max": (GAUGE, {"authenticator": ANY}),
    "meridian_http_service_requests_total": (COUNTER, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_cached_total": (COUNTER, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_coalesced_total": (COUNTER, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_unsendable_total": (COUNTER, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_in_flight": (GAUGE, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_cache_entries": (GAUGE, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_circuit_opened_total": (COUNTER, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_circuit": (GAUGE, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_seconds_total": (COUNTER, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_seconds_max": (GAUGE, {"service": {"http_auth", "http_acl"}}),
    "meridian_http_service_answers_total": (
        COUNTER,
        {"service": {"http_auth", "http_acl"}, "result": {"allow", "deny", "ignore"}},
    ),
    "meridian_http_service_failures_total": (
        COUNTER,
        {
            "service": {"http_auth", "http_acl"},
            "reason": {"timeout", "connect", "status", "body", "circuit_open", "busy"},
        },
    ),
    "meridian_jwt_tokens_total": (
        COUNTER,
        {"result": {"accepted", "malformed", "algorithm", "key", "signature", "time", "claims", "unavailable"}},
    ),
    "meridian_jwks_keys": (GAUGE, {}),
    "meridian_jwks_age_seconds": (GAUGE, {}),
    "meridian_jwks_fetches_total": (COUNTER, {"result": {"fetched", "failed"}}),
    "meridian_jwks_unknown_keys_total": (COUNTER, {}),
    "meridian_jwks_stale_uses_total": (COUNTER, {}),
    "meridian_login_failures_total": (COUNTER, {}),
    "meridian_login_backoffs_total": (COUNTER, {}),
    "meridian_flapping_bans_total": (COUNTER, {"result": {"made", "failed"}}),
    "meridian_protection_entries": (GAUGE, {}),
    "meridian_protection_evicted_total": (COUNTER, {}),
    "meridian_config_settings_refused": (GAUGE, {}),
    "meridian_config_store_records": (GAUGE, {"table": ANY}),
    "meridian_config_store_revision": (GAUGE, {}),
    "meridian_config_store_bytes": (GAUGE, {}),
    "meridian_config_store_changes_total": (COUNTER, {"result": {"accepted", "refused", "failed"}}),
    "meridian_config_store_syncs_total": (COUNTER, {}),
    "meridian_config_store_compactions_total": (COUNTER, {}),
    "meridian_config_store_torn_bytes_total": (COUNTER, {}),
    "meridian_storage_condition": (GAUGE, {"condition": {"good", "full", "failed"}}),
    "meridian_storage_segments": (GAUGE, {"state": {"used", "spare", "vacating"}}),
    "meridian_storage_bytes": (GAUGE, {}),
    "meridian_storage_live_bytes": (GAUGE, {}),
    "meridian_storage_queue_records": (GAUGE, {}),
    "meridian_storage_queue_bytes": (GAUGE, {}),
    "meridian_storage_commits_total": (COUNTER, {}),
    "meridian_storage_records_total": (COUNTER, {}),
    "meridian_storage_written_bytes_total": (COUNTER, {}),
    "meridian_storage_checkpoint_bytes_total": (COUNTER, {}),
    "meridian_storage_moved_bytes_total": (COUNTER, {}),
    "meridian_storage_segments_freed_total": (COUNTER, {}),
    "meridian_storage_full_total": (COUNTER, {}),
    "meridian_storage_sync_seconds": (HISTOGRAM, {}),
    "meridian_storage_commit_seconds": (HISTOGRAM, {}),
    "meridian_storage_recovery_seconds": (GAUGE, {"part": {"read", "restored"}}),
    "meridian_storage_recovery_truncated_bytes": (GAUGE, {}),
    "meridian_traces_active": (GAUGE, {}),
    "meridian_trace_events_lost_total": (COUNTER, {}),
    "meridian_slow_subscribers": (GAUGE, {}),
    "meridian_topic_messages_total": (COUNTER, {"filter": ANY, "direction": {"received", "sent", "dropped"}}),
    "meridian_http_requests_total": (COUNTER, {"code": ANY}),
    "meridian_http_connections": (GAUGE, {}),
    "meridian_http_streams": (GAUGE, {}),
    "meridian_audit_entries_lost_total": (COUNTER, {}),
    "meridian_audit_refused_unwritten_total": (COUNTER, {}),
    "meridian_http_rejected_total": (
        COUNTER,
        {
            "reason": {
                "connections", "address", "proxy", "tls", "host", "origin", "media_type", "token", "role", "body", "rate",
            },
        },  # fmt: skip
    ),
    "meridian_http_request_seconds": (HISTOGRAM, {}),
    "meridian_cluster_info": (GAUGE, {"node": ANY, "region": ANY, "role": ANY}),
    "meridian_cluster_acknowledging": (GAUGE, {}),
    "meridian_cluster_subacks_waiting": (GAUGE, {"for": {"core", "region", "cluster"}}),
    "meridian_cluster_messages_dropped_total": (COUNTER, {"reason": {"qos0", "suspect"}}),
    "meridian_cluster_subacks_overdue_total": (COUNTER, {}),
    "meridian_cluster_routes_applied_total": (COUNTER, {}),
    "meridian_cluster_routes_refused_total": (COUNTER, {}),
    "meridian_cluster_routes_unindexed": (GAUGE, {}),
    "meridian_cluster_messages_refused_total": (COUNTER, {}),
    "meridian_cluster_shard_frames_refused_total": (COUNTER, {}),
    "meridian_cluster_shards": (GAUGE, {"state": {"led_here", "led", "without_leader", "changing"}}),
    "meridian_cluster_shards_behind_max": (GAUGE, {}),
    "meridian_cluster_shard_transfers_total": (COUNTER, {"result": {"done", "given_up"}}),
    "meridian_cluster_malformed_total": (COUNTER, {}),
    "meridian_cluster_unauthenticated_closed_total": (COUNTER, {}),
    "meridian_cluster_requests_sent_total": (COUNTER, {}),
    "meridian_cluster_compressed_bytes_total": (COUNTER, {"when": {"before", "after"}}),
    "meridian_cluster_requests_unanswered_total": (COUNTER, {}),
    "meridian_cluster_requests_received_total": (COUNTER, {}),
    "meridian_cluster_requests_refused_total": (COUNTER, {}),
    "meridian_cluster_members": (GAUGE, {"state": {"alive", "leaving", "suspect", "dead"}}),
    "meridian_cluster_meta_leader": (GAUGE, {}),
    "meridian_cluster_meta_quorum": (GAUGE, {}),
    "meridian_cluster_meta_term": (GAUGE, {}),
    "meridian_cluster_meta_applied": (GAUGE, {}),
    "meridian_cluster_node_filters": (GAUGE, {"node": ANY}),
    "meridian_cluster_node_route_bytes": (GAUGE, {"node": ANY}),
    "meridian_cluster_node_position": (GAUGE, {"node": ANY}),
    "meridian_cluster_node_tombstones": (GAUGE, {"node": ANY}),
    "meridian_cluster_node_suspect": (GAUGE, {"node": ANY}),
    "meridian_link_up": (GAUGE, {"peer": ANY}),
    "meridian_link_state_seconds": (GAUGE, {"peer": ANY}),
    "meridian_link_connections": (GAUGE, {"peer": ANY}),
    "meridian_link_connections_wanted": (GAUGE, {"peer": ANY}),
    "meridian_link_round_trip_seconds": (GAUGE, {"peer": ANY}),
    "meridian_link_clock_ahead_seconds": (GAUGE, {"peer": ANY}),
    "meridian_link_bytes_sent_total": (COUNTER, {"peer": ANY}),
    "meridian_link_bytes_received_total": (COUNTER, {"peer": ANY}),
    "meridian_link_connections_opened_total": (COUNTER, {"peer": ANY}),
    "meridian_link_timeouts_total": (COUNTER, {"peer": ANY}),
    "meridian_link_restarts_total": (COUNTER, {"peer": ANY}),
    "meridian_link_unconsumed_bytes": (GAUGE, {"peer": ANY}),
    "meridian_link_unconfirmed_messages": (GAUGE, {"peer": ANY}),
    "meridian_link_frames_sent_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_frames_received_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_frame_bytes_sent_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_frame_bytes_received_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_frames_retransmitted_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_frames_refused_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_frames_lost_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_stalls_total": (COUNTER, {"peer": ANY, "class": LANES}),
    "meridian_link_queue_bytes": (GAUGE, {"peer": ANY, "class": LANES}),
    "meridian_link_queue_frames": (GAUGE, {"peer": ANY, "class": LANES}),
    "meridian_link_queue_age_seconds": (GAUGE, {"peer": ANY, "class": LANES}),
    "meridian_transport_connections": (GAUGE, {}),
    "meridian_transport_accepted_total": (COUNTER, {}),
    "meridian_transport_accept_errors_total": (COUNTER, {}),
    "meridian_transport_dialed_total": (COUNTER, {}),
    "meridian_transport_tls_errors_total": (COUNTER, {}),
    "meridian_transport_read_bytes_total": (COUNTER, {}),
    "meridian_transport_written_bytes_total": (COUNTER, {}),
    "meridian_transport_reads_total": (COUNTER, {}),
    "meridian_transport_writes_total": (COUNTER, {}),
    "meridian_transport_blocked_total": (COUNTER, {}),
    "meridian_transport_turns_total": (COUNTER, {}),
    "meridian_transport_wakeups_total": (COUNTER, {}),
    "meridian_transport_commands_total": (COUNTER, {}),
    "meridian_transport_bbr": (GAUGE, {}),
    "process_cpu_seconds_total": (COUNTER, {}),
    "process_resident_memory_bytes": (GAUGE, {}),
    "process_open_fds": (GAUGE, {}),
    "process_max_fds": (GAUGE, {}),
    "process_start_time_seconds": (GAUGE, {}),
}
# Without TLS, a node has the help text of these but no series.
OF_TLS = {"meridian_certificate_not_after_timestamp_seconds"}
# Only of nodes that belong to a cluster.
OF_CLUSTER = {name for name in METRICS if name.startswith(("meridian_cluster_", "meridian_link_", "meridian_transport_"))}
# Added by Prometheus.
PROMETHEUS = {"up": (GAUGE, {})}
PROMETHEUS_LABELS = {"job", "instance"}


def base(series):
    """The metric that a series of it belongs to: a histogram's buckets, sum and count are series of the histogram."""
    for ending in ("_bucket", "_sum", "_count"):
        name = series.removesuffix(ending)
        if series.endswith(ending) and METRICS.get(name, (None,))[0] == HISTOGRAM:
            return name
    return series


def family(series):
    """Type and labels of a series as an expression uses it; None for a name that is not in the list."""
    known = METRICS | PROMETHEUS
    name = base(series)
    if name == series:
        return known.get(name)
    return (COUNTER, known[name][1] | ({"le": ANY} if series.endswith("_bucket") else {}))
