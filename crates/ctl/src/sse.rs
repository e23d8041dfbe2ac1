//! Parser of `text/event-stream`, for pieces of bytes that may be split anywhere.

/// One event with data, or a keep-alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Event {
        name: String,
        data: String,
    },
    /// A comment; the node sends one every 15 s.
    KeepAlive,
}

/// Maximum length of a line: an event with 4 KiB of payload in base64 is below 8 KiB.
const LINE_MAX: usize = 1 << 20;
/// Maximum size of the data of one event.
const DATA_MAX: usize = 4 << 20;

/// A line or an event is longer than any that the node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    /// True after a line that ended with CR: a following LF belongs to it.
    after_cr: bool,
    started: bool,
    name: String,
    data: Option<String>,
}

impl Parser {
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the next bytes and passes every completed item to `each`.
    ///
    /// # Errors
    /// [`TooLong`]; the stream cannot be read any further.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Item)) -> Result<(), TooLong> {
        for &byte in bytes {
            let lf_of_crlf = std::mem::take(&mut self.after_cr) && byte == b'\n';
            match byte {
                b'\n' if lf_of_crlf => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    if let Some(item) = self.end_of_line()? {
                        each(item);
                    }
                }
                _ if self.line.len() >= LINE_MAX => return Err(TooLong),
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_of_line(&mut self) -> Result<Option<Item>, TooLong> {
        let line = std::mem::take(&mut self.line);
        let mut line = &line[..];
        if !std::mem::replace(&mut self.started, true) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let name = if name.is_empty() { "message".to_owned() } else { name };
            return Ok(self.data.take().map(|data| Item::Event { name, data }));
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => return Ok(Some(Item::KeepAlive)),
            "event" => value.clone_into(&mut self.name),
            "data" => {
                let data = self.data.get_or_insert_default();
                if data.len() + value.len() > DATA_MAX {
                    return Err(TooLong);
                }
                // The standard ends every line of data by a newline and removes the last one.
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            // `id` and `retry` serve reconnection, which streams of live events do not have.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn items(pieces: &[&[u8]]) -> Vec<Item> {
        let (mut parser, mut items) = (Parser::new(), Vec::new());
        pieces.iter().for_each(|piece| parser.feed(piece, |item| items.push(item)).unwrap());
        items
    }

    fn event(name: &str, data: &str) -> Item {
        Item::Event { name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn events_and_comments() {
        let stream =
            b": keep-alive\n\nevent: trace\ndata: {\"a\":1}\n\ndata:x\ndata: y\nid: 3\n\nevent: empty\n\n";
        assert_eq!(
            items(&[stream]),
            [Item::KeepAlive, event("trace", "{\"a\":1}"), event("message", "x\ny")]
        );
    }

    #[test]
    fn an_incomplete_last_event_is_ignored() {
        assert_eq!(items(&[b"data: 1\n\ndata: 2\n"]), [event("message", "1")]);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = Parser::new();
        let piece = vec![b'x'; LINE_MAX];
        assert_eq!(parser.feed(&piece, |_| ()), Ok(()));
        assert_eq!(parser.feed(b"x", |_| ()), Err(TooLong));
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_how_the_bytes_are_split(
            lines in prop::collection::vec("(event: |data: |: |data)?[a-c\u{e9}]{0,3}(\n|\r|\r\n)", 0..12),
            cuts in prop::collection::vec(0_usize..60, 0..6),
        ) {
            let stream = lines.concat();
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(items(&pieces), items(&[bytes]));
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
            // The result does not matter: the test is that the call returns.
            let _ = Parser::new().feed(&bytes, |_| ());
        }
    }
}
