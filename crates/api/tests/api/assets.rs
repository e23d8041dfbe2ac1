//! Files of the dashboard.

use crate::support::Server;

#[test]
fn the_page_needs_no_token_and_is_not_cached() {
    let server = Server::with_keys(|_| ());
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'self'"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let etag = page.header("etag").unwrap();
    let again = server.request("GET", "/", &[("If-None-Match", &format!("\"x\", W/{etag}"))], None);
    assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, Some(etag)));
    assert_eq!(server.request("GET", "/", &[("If-None-Match", "\"x\"")], None).status, 200);
    assert_eq!(server.get("/index.html").body, page.body);
}

#[test]
fn files_named_after_their_content_are_kept() {
    let server = Server::start();
    let page = server.get("/");
    let mut found = 0;
    for piece in page.text().split('"').filter(|piece| piece.contains("assets/")) {
        let asset = server.get(&format!("/{}", piece.trim_start_matches("./").trim_start_matches('/')));
        assert_eq!(asset.status, 200, "{piece}");
        assert_eq!(asset.header("cache-control"), Some("public, max-age=31536000, immutable"));
        found += 1;
    }
    assert!(found > 0 || !page.text().contains("<script"));
}

#[test]
fn a_file_is_only_read() {
    let server = Server::start();
    server.write("POST", "/", None).problem(404, "not-found");
    let head = server.request("HEAD", "/", &[], None);
    assert_eq!((head.status, head.body.len()), (200, 0));
}
