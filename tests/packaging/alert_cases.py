"""For each alert rule: series for which it must fire, in the format of `promtool test rules`, and the time. All other series
are those of `healthy`, for which no alert may fire."""

J = 'job="meridian",instance="n1:18083"'
MIB = 1024 * 1024
DAY = 24 * 60 * 60
CERTIFICATE = "meridian_certificate_not_after_timestamp_seconds"
LINK_DROPS = ',link="munich",origin="berlin",direction="out",cause="queue"'
CERTIFICATE_LABELS = ',listener="secure",kind="server",certificate="/etc/meridian/server.crt"'


def healthy():
    """A node with 1,000 clients under some load, for eight hours in steps of a minute."""
    flat, n = "{}x600", {}

    def gauge(name, value, labels=""):
        n[f"{name}{{{J}{labels}}}"] = flat.format(f"{value}+0")

    def counter(name, per_minute, labels=""):
        n[f"{name}{{{J}{labels}}}"] = f"0+{per_minute}x600"

    gauge("up", 1)
    gauge("meridian_cluster_routes_unindexed", 0)
    gauge("meridian_routing_shapes_free", 1_024)
    gauge("process_start_time_seconds", 1_700_000_000)
    gauge("process_open_fds", 1_040)
    gauge("process_max_fds", 65_536)
    gauge("process_resident_memory_bytes", 300 * MIB)
    gauge("meridian_clients", 1_000)
    gauge("meridian_config_settings_refused", 0)
    gauge("meridian_watched_files_refused", 0)
    gauge("meridian_bridge_failing", 0, ',bridge="plant"')
    counter("meridian_bridge_dropped_total", 0, ',bridge="plant",cause="queue"')
    counter("meridian_bridge_dropped_total", 60, ',bridge="plant",cause="looped"')
    gauge("meridian_cluster_link_failing", 0, ',link="munich",origin="munich"')
    counter("meridian_cluster_link_dropped_total", 0, LINK_DROPS)
    gauge("meridian_action_failing", 0, ',action="rows"')
    counter("meridian_action_dropped_total", 0, ',action="rows"')
    gauge("meridian_queued_bytes", MIB, ',for="connected"')
    gauge("meridian_queued_bytes", 20 * MIB, ',for="offline"')
    gauge("meridian_queue_oldest_age_seconds", 3_600)
    counter("meridian_clients_connected_total", 60)
    counter("meridian_takeovers_total", 1)
    for reactor in "01":
        counter("meridian_reactor_busy_seconds_total", 24, f',reactor="{reactor}"')
        for le in ("0.001", "0.01", "0.1", "1", "+Inf"):
            counter("meridian_reactor_turn_seconds_bucket", 6_000, f',reactor="{reactor}",le="{le}"')
    for reason in ("descriptors", "limit", "other"):
        counter("meridian_accept_errors_total", 0, f',reason="{reason}"')
    for reason in ("slow_reader", "queue_full", "packet_too_large", "session_ended", "no_group_member"):
        counter("meridian_messages_dropped_total", 2, f',reason="{reason}"')
    for reason in ("expired", "not_readable"):
        counter("meridian_messages_dropped_total", 6_000, f',reason="{reason}"')
    for reason in ("protocol_error", "keep_alive_timeout", "connect_timeout", "taken_over", "administrative"):
        counter("meridian_disconnects_total", 2, f',reason="{reason}"')
    counter("meridian_disconnects_total", 0, ',reason="slow_reader"')
    for result, rate in (("accepted", 30), ("cached", 30), ("refused", 6), ("busy", 0), ("banned", 6)):
        counter("meridian_authentications_total", rate, f',result="{result}"')
    for outcome, rate in (("accepted", 30), ("refused", 6), ("failed", 0), ("timed_out", 0)):
        counter("meridian_authenticator_outcomes_total", rate, f',authenticator="http",outcome="{outcome}"')
    for service in ("http_auth", "http_acl"):
        for reason in ("timeout", "connect", "status", "body", "circuit_open", "busy"):
            counter("meridian_http_service_failures_total", 0, f',service="{service}",reason="{reason}"')
    counter("meridian_jwks_fetches_total", 1, ',result="fetched"')
    counter("meridian_jwks_fetches_total", 0, ',result="failed"')
    counter("meridian_login_backoffs_total", 1)
    for name in ("publishers_blocked", "publishes_refused", "publishes_denied", "subscribes_denied", "wills_denied"):
        counter(f"meridian_{name}_total", 3)
    for name in ("retained_refused", "sessions_refused"):
        counter(f"meridian_{name}_total", 0)
    for reason in ("token", "role", "host", "origin", "rate"):
        counter("meridian_http_rejected_total", 1, f',reason="{reason}"')
    counter("meridian_audit_entries_lost_total", 0)
    for condition in ("good", "full", "failed"):
        gauge("meridian_storage_condition", int(condition == "good"), f',condition="{condition}"')
    for le in ("0.008192", "0.524288", "+Inf"):
        counter("meridian_storage_sync_seconds_bucket", 600, f',le="{le}"')
    counter("meridian_messages_unreadable_total", 0)
    gauge("meridian_cluster_acknowledging", 1)
    gauge("meridian_cluster_meta_quorum", 1)
    for peer in ("n2", "n3"):
        gauge("meridian_link_up", 1, f',peer="{peer}"')
        gauge("meridian_link_clock_ahead_seconds", -0.4, f',peer="{peer}"')
        for lane in ("control", "assured"):
            gauge("meridian_link_queue_age_seconds", 0, f',peer="{peer}",class="{lane}"')
            counter("meridian_link_frames_sent_total", 6_000, f',peer="{peer}",class="{lane}"')
            counter("meridian_link_frames_retransmitted_total", 6, f',peer="{peer}",class="{lane}"')
    gauge(CERTIFICATE, 60 * DAY, CERTIFICATE_LABELS)
    counter("meridian_http_requests_total", 60, ',code="200"')
    counter("meridian_http_requests_total", 0, ',code="503"')
    return n


def changed(name, values, labels=""):
    return {f"{name}{{{J}{labels}}}": values}


# alert: (series that differ from healthy, minutes until it must fire)
FIRING = {
    "MeridianDown": (changed("up", "1x9 0x600"), 15),
    "MeridianRestarted": (changed("process_start_time_seconds", "100x9 700x600"), 12),
    "MeridianDescriptorsNearlyGone": (changed("process_open_fds", "60000x600"), 6),
    "MeridianAcceptErrors": (changed("meridian_accept_errors_total", "0+60x600", ',reason="descriptors"'), 15),
    "MeridianReactorSaturated": (changed("meridian_reactor_busy_seconds_total", "0+59x600", ',reactor="1"'), 20),
    "MeridianReactorSlowTurns": (
        changed("meridian_reactor_turn_seconds_bucket", "0+5000x600", ',reactor="1",le="0.001"')
        | changed("meridian_reactor_turn_seconds_bucket", "0+5000x600", ',reactor="1",le="0.01"')
        | changed("meridian_reactor_turn_seconds_bucket", "0+5000x600", ',reactor="1",le="0.1"'),
        20,
    ),
    "MeridianMemoryGrows": (changed("process_resident_memory_bytes", f"{300 * MIB}+{MIB}x600"), 480),
    "MeridianLinkDown": (
        changed("meridian_link_up", "1x9 0x600", ',peer="n2"')
        | changed("meridian_link_queue_age_seconds", "0+0x9 0+60x600", ',peer="n2",class="assured"'),
        60,
    ),
    "MeridianRoutesUnindexed": (changed("meridian_cluster_routes_unindexed", "0x9 2x600"), 12),
    "MeridianShapesShort": (changed("meridian_routing_shapes_free", "1024x9 10x600"), 20),
    "MeridianNotAcknowledging": (changed("meridian_cluster_acknowledging", "1x9 0x600"), 15),
    "MeridianNoQuorum": (changed("meridian_cluster_meta_quorum", "1x9 0x600"), 15),
    "MeridianClocksDiffer": (changed("meridian_link_clock_ahead_seconds", "0x9 -3600x600", ',peer="n3"'), 20),
    "MeridianConfigRefused": (changed("meridian_config_settings_refused", "0x9 2x600"), 20),
    "MeridianLinkQueueOld": (changed("meridian_link_queue_age_seconds", "9x600", ',peer="n3",class="assured"'), 15),
    "MeridianLinkRetransmits": (
        changed("meridian_link_frames_retransmitted_total", "0+300x600", ',peer="n3",class="assured"'),
        25,
    ),
    "MeridianDiskFull": (changed("meridian_storage_condition", "0+0x10 1+0x600", ',condition="full"'), 15),
    "MeridianDiskFailed": (changed("meridian_storage_condition", "0+0x10 1+0x600", ',condition="failed"'), 15),
    "MeridianDiskSlow": (changed("meridian_storage_sync_seconds_bucket", "0+300x600", ',le="0.008192"'), 20),
    "MeridianMessagesUnreadable": (changed("meridian_messages_unreadable_total", "0+1x600"), 16),
    "MeridianMessagesDropped": (changed("meridian_messages_dropped_total", "0+120x600", ',reason="slow_reader"'), 20),
    "MeridianSlowReadersClosed": (changed("meridian_disconnects_total", "0+2x600", ',reason="slow_reader"'), 16),
    "MeridianPublishersBlocked": (changed("meridian_publishers_blocked_total", "0+120x600"), 20),
    "MeridianQueuesNearLimit": (changed("meridian_queued_bytes", f"{900 * MIB}x600", ',for="offline"'), 10),
    "MeridianQueueOld": (changed("meridian_queue_oldest_age_seconds", "90000+60x600"), 70),
    "MeridianRetainedRefused": (changed("meridian_retained_refused_total", "0+1x600"), 16),
    "MeridianPublishesRefused": (changed("meridian_publishes_refused_total", "0+120x600"), 20),
    "MeridianClientsLost": (changed("meridian_clients", "1000x20 400x600"), 25),
    "MeridianReconnectStorm": (changed("meridian_clients_connected_total", "0+6000x600"), 20),
    "MeridianTakeovers": (changed("meridian_takeovers_total", "0+120x600"), 20),
    "MeridianProtocolErrors": (changed("meridian_disconnects_total", "0+120x600", ',reason="protocol_error"'), 20),
    "MeridianSilentClients": (changed("meridian_disconnects_total", "0+30x600", ',reason="keep_alive_timeout"'), 25),
    "MeridianConnectTimeouts": (changed("meridian_disconnects_total", "0+600x600", ',reason="connect_timeout"'), 20),
    "MeridianSessionsRefused": (changed("meridian_sessions_refused_total", "0+1x600"), 16),
    "MeridianAuthenticationsRefused": (changed("meridian_authentications_total", "0+600x600", ',result="refused"'), 15),
    "MeridianAuthenticationsBusy": (changed("meridian_authentications_total", "0+60x600", ',result="busy"'), 15),
    "MeridianAuthenticationLinkFails": (
        changed("meridian_authenticator_outcomes_total", "0+60x600", ',authenticator="http",outcome="failed"'),
        15,
    ),
    "MeridianHttpServiceFails": (
        changed("meridian_http_service_failures_total", "0+60x600", ',service="http_acl",reason="connect"'),
        15,
    ),
    "MeridianTokenKeysNotFetched": (
        changed("meridian_jwks_fetches_total", "30+0x600", ',result="fetched"')
        | changed("meridian_jwks_fetches_total", "0+1x600", ',result="failed"'),
        60,
    ),
    "MeridianLoginBackoffs": (changed("meridian_login_backoffs_total", "0+30x600"), 30),
    "MeridianBannedClients": (changed("meridian_authentications_total", "0+900x600", ',result="banned"'), 40),
    "MeridianAccessDenied": (changed("meridian_subscribes_denied_total", "0+90x600"), 20),
    "MeridianDrainStalled": (changed("meridian_drain_stalled_seconds", "0+60x600", ',kind="drain"'), 20),
    "MeridianBridgeFailing": (changed("meridian_bridge_failing", "1x600", ',bridge="plant"'), 20),
    "MeridianBridgeDropping": (changed("meridian_bridge_dropped_total", "0+1x600", ',bridge="plant",cause="queue"'), 16),
    "MeridianClusterLinkDown": (changed("meridian_cluster_link_failing", "1x600", ',link="munich",origin="munich"'), 20),
    "MeridianClusterLinkDropping": (changed("meridian_cluster_link_dropped_total", "0+1x600", LINK_DROPS), 16),
    "MeridianClusterLinkRestored": (changed("meridian_cluster_link_restores_total", "0+1x600", ',link="munich",origin="munich"'), 16),
    "MeridianActionFailing": (changed("meridian_action_failing", "1x600", ',action="rows"'), 20),
    "MeridianActionDropping": (changed("meridian_action_dropped_total", "0+1x600", ',action="rows",reason="queue"'), 16),
    "MeridianCertificateEnds": (changed(CERTIFICATE, f"{10 * DAY}x600", CERTIFICATE_LABELS), 20),
    "MeridianCertificateEnded": (changed(CERTIFICATE, "60x600", CERTIFICATE_LABELS), 20),
    "MeridianWatchedFilesRefused": (changed("meridian_watched_files_refused", "1x600"), 20),
    "MeridianHttpRejected": (changed("meridian_http_rejected_total", "0+60x600", ',reason="token"'), 15),
    "MeridianAuditLost": (changed("meridian_audit_entries_lost_total", "0+1x600"), 16),
    "MeridianHttpErrors": (changed("meridian_http_requests_total", "0+60x600", ',code="503"'), 15),
}


def input_series(series):
    return [{"series": name, "values": values} for name, values in series.items()]


def rules_test(rules, names):
    """The file for `promtool test rules`: each alert fires alone in its case; none fires for the healthy series."""
    quiet = [
        {"eval_time": f"{minutes}m", "expr": "count(ALERTS)", "exp_samples": []} for minutes in (5, 60, 400, 590)
    ]
    tests = [{"name": "healthy", "interval": "1m", "input_series": input_series(healthy()), "promql_expr_test": quiet}]
    for name in names:
        series, minutes = FIRING[name]
        base = healthy()
        for key in series:
            if key not in base:
                raise ValueError(f"{name}: {key} is not among the healthy series")
        fires = {
            "eval_time": f"{minutes}m",
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
        }
        tests.append(
            {"name": name, "interval": "1m", "input_series": input_series(base | series), "promql_expr_test": [fires]}
        )
    return {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}
