//! Tables with an owner (since Linux 6.9).

use nftables::{Batch, Client, Error, TableFlags};

use super::sandbox::{Sandbox, kernel, name, table};

fn claim(client: &mut Client) -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.create_table(&table(), TableFlags::OWNER | TableFlags::PERSIST);
    batch.create_chain(&table(), &name("chain"));
    client.commit(batch)
}

#[test]
fn nobody_else_changes_an_owned_table_and_the_next_claims_it() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    if kernel() < (6, 9) {
        let error = claim(&mut client).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        return;
    }
    claim(&mut client).unwrap();
    claim(&mut client).unwrap();
    let owner = client.table(&table()).unwrap().owner;
    assert_eq!(owner, Some(client.port().unwrap()));

    assert!(sandbox.try_nft("add chain ip zz another").is_err());
    sandbox.nft("flush ruleset");
    let mut other = sandbox.client();
    let error = claim(&mut other).unwrap_err();
    assert!(error.is_permission());
    assert_eq!(
        error.to_string(),
        "create table ip zz: Operation not permitted (os error 1) \
         (and 1 more changes of the transaction)"
    );

    drop(client);
    let left = other.table(&table()).unwrap();
    assert_eq!((left.owner, left.uses), (None, 1), "it outlives its owner");
    claim(&mut other).unwrap();
    assert_eq!(other.table(&table()).unwrap().owner, Some(other.port().unwrap()));
}
