//! Tests of changing subscriptions.
