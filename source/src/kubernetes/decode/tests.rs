use super::*;

/// A list that comes in one go.
struct Page {
    items: Vec<Item>,
    end: PageEnd,
}

fn decode(text: &str) -> serde_json::Result<Page> {
    let mut reader = ListReader::new(ResourceKind::Service, Encoding::Json);
    let items = reader.read(text.as_bytes())?;
    Ok(Page { items, end: reader.end()? })
}

fn page(items: &str) -> Page {
    let text = format!(
        r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"7",
            "continue":"more"}},"items":{items}}}"#
    );
    decode(&text).unwrap()
}

#[test]
fn a_page_with_good_and_bad_objects() {
    let page = page(
        r#"[{"metadata":{"name":"a","namespace":"n"}},
            {"metadata":{"name":"b","namespace":"n"},"spec":{"ports":[{},{"port":"http"}]}},
            "neither", {"metadata":{"name":"c","managedFields":[{"x":1}]}}]"#,
    );
    assert_eq!(page.end.resource_version.as_deref(), Some("7"));
    assert_eq!(page.end.next.as_deref(), Some("more"));
    let [
        Item::Service(first),
        Item::Undecodable(bad),
        Item::Undecodable(nameless),
        Item::Service(last),
    ] = page.items.as_slice()
    else {
        panic!("{:?}", page.items)
    };
    assert_eq!(first.metadata.name.as_deref(), Some("a"));
    assert_eq!(last.metadata.name.as_deref(), Some("c"));
    assert_eq!(bad.metadata.name.as_deref(), Some("b"));
    assert_eq!(bad.metadata.namespace.as_deref(), Some("n"));
    assert_eq!(bad.problem, "spec.ports[1].port: invalid type: string \"http\", expected i64");
    assert_eq!(nameless.metadata, Metadata::default());
}

#[test]
fn what_has_no_items_is_no_list() {
    for text in [
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}"#,
        "{}",
        r#"{"metadata":{"resourceVersion":"1"}}"#,
        r#"{"metadata":{"resourceVersion":"1"},"items":[{"#,
        "<html>",
        "",
    ] {
        assert!(decode(text).is_err(), "{text}");
    }
    for text in [r#"{"items":[]}"#, r#"{"items":null}"#] {
        assert_eq!(decode(text).unwrap().items, [], "{text}");
    }
}

#[test]
fn the_lines_of_a_watch() {
    let line = |text: &str| Event::decode(ResourceKind::Node, Encoding::Json, text.as_bytes());
    let item = r#"{"metadata":{"name":"n","resourceVersion":"5"}}"#;
    let Ok(Event::Applied(added)) = line(&format!(r#"{{"type":"ADDED","object":{item}}}"#)) else {
        panic!()
    };
    assert_eq!(added.resource_version(), Some("5"));
    let modified = line(&format!(r#"{{"type":"MODIFIED","object":{item}}}"#)).unwrap();
    assert_eq!(modified, Event::Applied(added.clone()));
    let deleted = line(&format!(r#"{{"object":{item},"type":"DELETED"}}"#)).unwrap();
    assert_eq!(deleted, Event::Deleted(added));
    for (annotations, ends) in
        [("", false), (r#","annotations":{"k8s.io/initial-events-end":"true"}"#, true)]
    {
        let text = format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"Node","metadata":{{"resourceVersion":"9"{annotations}}}}}}}"#
        );
        let expected = Event::Bookmark { resource_version: "9".to_owned(), list_ends: ends };
        assert_eq!(line(&text).unwrap(), expected);
    }
    let error = line(r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"old"}}"#);
    let Ok(Event::Error(status)) = error else { panic!("{error:?}") };
    assert!(status.is_expired());
    for text in
        ["", "{}", "garbage", r#"{"type":"BOOKMARK","object":{}}"#, r#"{"type":"NEW","object":{}}"#]
    {
        assert!(line(text).is_err(), "{text}");
    }
}

#[test]
fn a_bad_object_still_says_how_far_the_watch_is() {
    let text =
        r#"{"type":"MODIFIED","object":{"metadata":{"name":"n","resourceVersion":"8"},"spec":3}}"#;
    let Ok(Event::Applied(item)) =
        Event::decode(ResourceKind::EndpointSlice, Encoding::Json, text.as_bytes())
    else {
        panic!()
    };
    assert!(matches!(item, Item::EndpointSlice(_)), "spec means nothing to a slice: {item:?}");
    let text = text.replace("spec", "endpoints");
    let Ok(Event::Applied(item)) =
        Event::decode(ResourceKind::EndpointSlice, Encoding::Json, text.as_bytes())
    else {
        panic!()
    };
    assert_eq!(item.resource_version(), Some("8"));
    let Item::Undecodable(bad) = item else { panic!("{item:?}") };
    assert!(bad.problem.starts_with("endpoints: invalid type: integer"), "{}", bad.problem);
}

#[test]
fn words_of_a_server_are_cut_and_stay_on_one_line() {
    let line = |text: String| Event::decode(ResourceKind::Service, Encoding::Json, text.as_bytes());
    let long = "x".repeat(1 << 20);
    let message = format!(r#"\u001b[2J a \"field\"\n{long}"#);
    let error =
        line(format!(r#"{{"type":"ERROR","object":{{"code":500,"message":"{message}"}}}}"#));
    let Ok(Event::Error(status)) = error else { panic!("it is an event") };
    let expected = r#"\u{1b}[2J a "field"\nxxx"#;
    assert!(status.message.starts_with(expected), "{}", status.message);
    assert!(status.message.len() <= 300, "{}", status.message.len());
    let unknown = line(format!(r#"{{"type":"{long}","object":{{}}}}"#)).unwrap_err().to_string();
    assert!(unknown.contains("unknown type \"xxx") && unknown.len() < 300, "{}", unknown.len());
}
