DROP TABLE storage_ledger;
